"""What the published run must give: report lines, bit patterns, fingerprints.

Every float64 number here was published; none was taken from this package.  Bit patterns are those
of correctly rounded elementary functions.  For float32 nothing was published elsewhere: its
fingerprints are those of version 1 of the numerics contract, from a slow scalar program that the
tests contain.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "CHECKPOINT_LOSS_BITS",
    "DRAW",
    "FILE_CHECKSUM",
    "INITIAL_STATE",
    "LOGITS",
    "NORM_BITS",
    "ODD_SIZED",
    "ODD_SIZED_FLOAT32",
    "REPLAYED_LOGITS",
    "REPLAY_REPORT",
    "SCALE_BITS",
    "SELECTED_STATE",
    "TRACE",
    "TRAINING_REPORT",
    "UPDATE_LOSS_BITS",
    "OddSized",
]

INITIAL_STATE = "fnv1a64:49b4b59410def7f0"
SELECTED_STATE = "fnv1a64:5bf915a97ebea3e5"
FILE_CHECKSUM = "fnv1a64:2b8b6097eaed6a91"
LOGITS = "fnv1a64:6029064fe7cd162d"
REPLAYED_LOGITS = "fnv1a64:0b875a0c9f380d8f"
DRAW = 0x9A8C505971939232

UPDATE_LOSS_BITS = (
    0x4003A1C9CBEFF083,
    0x3FFA300E2FA961AC,
    0x3FFCF47BCA559AD2,
    0x3FF1DD290543AD68,
    0x3FF2B5240587CE5F,
    0x3FFC5832FB087CA2,
    0x3FF04EF009219323,
    0x3FFB2BB4950A03F8,
)
NORM_BITS = (
    0x401034982D8BE909,
    0x4008E8250B2F811F,
    0x3FFDCA9637A3CBFA,
    0x3FF8929A05C23235,
    0x3FFB287439B0262E,
    0x3FFB4FAE5F60C10E,
    0x3FF2B22A26755E35,
    0x3FF7D93B84A20312,
)
SCALE_BITS = (
    0x3FB61DB385D50D85,
    0x3FBCC77E5797F3DE,
    0x3FC80F882C522958,
    0x3FCD2BAE451B6E77,
    0x3FCA64C7C6D65A1F,
    0x3FCA3EDF046DFD53,
    0x3FD32B7FF78EA5F7,
    0x3FCE0E6AC1CD7F0B,
)
CHECKPOINT_LOSS_BITS = (  # (training, validation) after 0, 2, 4, 6 and 8 updates
    (0x4000C297EDDDAC56, 0x3FFEB0D06616F846),
    (0x3FF8FE0F2772BC12, 0x3FFB2415BC232CC2),
    (0x3FF7408CAD831F24, 0x3FFB012DCAD1BACD),
    (0x3FF5EAD4D32FB152, 0x3FFA48162E588BB0),
    (0x3FF52A965F930C76, 0x3FF986566C06D651),
)


@dataclass(frozen=True)
class OddSized:
    """Fingerprints of the odd-sized run under one ceiling."""

    parameters: str
    moments: str
    selected_step: int


ODD_SIZED = {
    1.2: OddSized("fnv1a64:35b3ff87ea863cfb", "fnv1a64:f27e49c9c83ce84e", 6),
    2.2: OddSized("fnv1a64:b9e2d0dfc82ab0f8", "fnv1a64:8ae2074a1b6a8d85", 6),
    100.0: OddSized("fnv1a64:8c43d11c4bbbb42a", "fnv1a64:a7614a93c0cce768", 3),
}

ODD_SIZED_FLOAT32 = {  # contract version 1
    1.2: OddSized("fnv1a64:1678fb51e7234b8c", "fnv1a64:0ee6836dc41dc3d7", 6),
    2.2: OddSized("fnv1a64:59961387dcb8d683", "fnv1a64:63efb2902ee2fc9d", 6),
    100.0: OddSized("fnv1a64:6f986951d5a6c4d9", "fnv1a64:c3429ccea6fad467", 3),
}

TRAINING_REPORT = """\
config=vocabulary:5 model_width:4 layers:1 heads:2 context:2 updates:8 batch:2 clip_norm:0.350000 \
parameters:144
order=forward,backward,finite-check,clip,adamw-step,zero-grad
schedule=0.040000,0.040000,0.025000,0.025000,0.015000,0.015000,0.008000,0.008000
checkpoint=step:0 train_loss:2.095016 validation_loss:1.918167 selected:false train_graphs:0 \
validation_graphs:0
checkpoint=step:2 train_loss:1.562026 validation_loss:1.696310 selected:false train_graphs:0 \
validation_graphs:0
checkpoint=step:4 train_loss:1.453259 validation_loss:1.687788 selected:false train_graphs:0 \
validation_graphs:0
checkpoint=step:6 train_loss:1.369832 validation_loss:1.642599 selected:false train_graphs:0 \
validation_graphs:0
checkpoint=step:8 train_loss:1.322897 validation_loss:1.595297 selected:true train_graphs:0 \
validation_graphs:0
selection=step:8 validation_loss:1.595297 criterion:earliest-minimum-validation-loss \
snapshot:model-and-optimizer test_partition_rejected:true
clipping=observed:true max_norm:0.350000 finite:true nodes_preserved:true cleared:true
ownership=input_model_unchanged:true input_optimizer_unchanged:true selected_restored:true
selection_contrast=training_only_step:2 validation_step:1
replay=bitwise:true
next=save-the-selected-state
"""

REPLAY_REPORT = """\
schema=version:1 magic:LLMCP35 endian:little header_bytes:2869 payload_bytes:3461 file_bytes:6330 \
checksum:fnv1a64:2b8b6097eaed6a91
tokenizer=kind:literal-u32 vocabulary:5 decoder_vocabulary:5 layout_version:1 pieces:5
layout=records:38 first:0:LiteralToken/u8[1]@2869..2870 \
first_parameter:token_embedding.weight:ModelParameter/f64[5,4]@2874..3034 final_end:6330 \
alignment_padding:0
hex=first16:4c4c4d4350333500010004030201350b
state=selected_step:8 optimizer_step:8 parameter_tensors:11 parameter_scalars:144 \
sampling_rng:splitmix64 sampling_rng_state:0x9e3779b97f4a7c38
roundtrip=bytes_deterministic:true loaded_bytes_identical:true logits_bits_identical:true \
logits_fingerprint:fnv1a64:6029064fe7cd162d sampling_rng_next_identical:true \
sampling_rng_next:0x9a8c505971939232
component_replay=inputs:0,1 targets:1,2 learning_rate:0.006 next_step:9 \
parameter_bits_identical:true optimizer_state_identical:true logits_bits_identical:true \
logits_fingerprint:fnv1a64:0b875a0c9f380d8f changed_batch_diverges:true \
changed_learning_rate_diverges:true
scope=stored:tokenizer,decoder_config,parameters,adamw_config,decay_groups,adamw_step,beta_powers,\
first_moments,second_moments,selected_step,sampling_rng_state \
validated:vocabulary_sizes,step_equality,moment_names_and_shapes,canonical_bytes \
not_stored:gradients,schedule,clip_ceiling,validation_policy,corpus_and_split,batch_position,\
shuffle_rng_state,lineage \
required:next_batch,next_learning_rate,arithmetic_kernels,sampling_policy whole_job_resume:false
reject=version:true vocabulary_mismatch:true step_mismatch:true truncation:true checksum:true
atomic=replaced_complete_file:true loaded_sampling_rng_state:0x9e3779b97f4a7c39 temporary_files:0 \
unix_same_directory:true
contrast=isolated_parameter_tensors:11 scalars:144 bytes:1152 checkpoint_records:38 \
tokenizer_records:5 optimizer_moment_records:22 checkpoint_file_bytes:6330 \
sampling_rng_state:0x9e3779b97f4a7c38
next=choose-a-token-from-the-loaded-state
"""

TRACE = """\
TRAINING_SELECTION_TRACE_V1
CONFIG|seed=33|updates=8|batch=2|context=2|validation_every=2|clip=0.35
ORDER|forward|backward|finite-check|clip|adamw-step|zero-grad
SCHEDULE|first=1|last=2|learning_rate=0.040000
SCHEDULE|first=3|last=4|learning_rate=0.025000
SCHEDULE|first=5|last=6|learning_rate=0.015000
SCHEDULE|first=7|last=8|learning_rate=0.008000
UPDATE|step=1|windows=train-b@2,train-b@8|learning_rate=0.040000|train_loss=2.453998|\
norm_before=4.051362|norm_after=0.350000|scale=0.086391|clipped=true|finite=true|\
nodes_preserved=true|cleared=true
UPDATE|step=2|windows=train-a@0,train-b@9|learning_rate=0.040000|train_loss=1.636732|\
norm_before=3.113352|norm_after=0.350000|scale=0.112419|clipped=true|finite=true|\
nodes_preserved=true|cleared=true
UPDATE|step=3|windows=train-a@7,train-b@0|learning_rate=0.025000|train_loss=1.809688|\
norm_before=1.861960|norm_after=0.350000|scale=0.187974|clipped=true|finite=true|\
nodes_preserved=true|cleared=true
UPDATE|step=4|windows=train-a@1,train-b@7|learning_rate=0.025000|train_loss=1.116494|\
norm_before=1.535791|norm_after=0.350000|scale=0.227896|clipped=true|finite=true|\
nodes_preserved=true|cleared=true
UPDATE|step=5|windows=train-a@2,train-a@6|learning_rate=0.015000|train_loss=1.169224|\
norm_before=1.697376|norm_after=0.350000|scale=0.206201|clipped=true|finite=true|\
nodes_preserved=true|cleared=true
UPDATE|step=6|windows=train-a@3,train-a@4|learning_rate=0.015000|train_loss=1.771533|\
norm_before=1.706953|norm_after=0.350000|scale=0.205044|clipped=true|finite=true|\
nodes_preserved=true|cleared=true
UPDATE|step=7|windows=train-b@4,train-a@5|learning_rate=0.008000|train_loss=1.019272|\
norm_before=1.168497|norm_after=0.350000|scale=0.299530|clipped=true|finite=true|\
nodes_preserved=true|cleared=true
UPDATE|step=8|windows=train-a@8,train-a@9|learning_rate=0.008000|train_loss=1.698170|\
norm_before=1.490535|norm_after=0.350000|scale=0.234815|clipped=true|finite=true|\
nodes_preserved=true|cleared=true
AXIS|min=1.3|middle=1.7|max=2.1
CHECKPOINT|step=0|train=2.095016|validation=1.918167|selected=false
CHECKPOINT|step=2|train=1.562026|validation=1.696310|selected=false
CHECKPOINT|step=4|train=1.453259|validation=1.687788|selected=false
CHECKPOINT|step=6|train=1.369832|validation=1.642599|selected=false
CHECKPOINT|step=8|train=1.322897|validation=1.595297|selected=true
SELECT|step=8|validation=1.595297|partition=validation|rule=earliest-minimum
PROOF|updates=train|selection=validation|test=rejected|finite=true|nodes_preserved=true|\
cleared=true|input_model_unchanged=true|input_optimizer_unchanged=true|selected_restored=true|\
replay_bitwise=true
END
"""
