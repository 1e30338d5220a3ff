"""What the published final evaluation, sampling and cached generation print."""

from __future__ import annotations

__all__ = ["CACHE_REPORT", "CACHE_STATE", "EVALUATION_REPORT", "SAMPLING_REPORT"]

CACHE_STATE = "fnv1a64:6dc4896d044c98c6"  # parameters of the decoder in the cache's report

EVALUATION_REPORT = """\
selection=step:8 validation_loss:1.595297 criterion:validation-only test_partition_rejected:true
provenance=corpus:ch33-34-synthetic-v1 split:fixed-role-split-v1 tokenizer:literal-u32-v1 \
vocabulary:5 context:2
baseline=alpha:1.000000 fitted_partition:train documents:2 transitions:22 frozen:true
test=documents:2 windows:12 batches:3 targets:24 gate_openings_before:0 gate_openings_after:1 \
fingerprint:fnv1a64:dac4bb4d76beeb59
decoder=mean_nll:1.607679 perplexity:4.991215 total_nll:38.584306 graphs:0 \
parameters_unchanged:true gradients_unchanged:true
bigram=mean_nll:2.236735 perplexity:9.362710 total_nll:53.681634
comparison=lower_loss:selected-decoder gap:0.629055 same_targets:true
evidence=scope:fixed-fixture-regression within_run_selection_isolated:true \
fixture_selected_for_ordering:true independent_generalization_estimate:false \
architecture_superiority_evidence:false
proof=token_weighted:true provenance_assertions_match:true selection_closed:true report_version:1
next=write-down-what-was-evaluated
"""

SAMPLING_REPORT = """\
input=logits:[0.000000,1.000000,1.000000,2.000000] stable_order:[3,1,2,0]
temperature=tau:0.500000 \
probabilities:[0.014209336619,0.104993585404,0.104993585404,0.775803492574] tau:1.000000 \
probabilities:[0.072329488129,0.196611933241,0.196611933241,0.534446645389] tau:2.000000 \
probabilities:[0.142536956597,0.235003712202,0.235003712202,0.387455619000]
top_k=k:2 retained:[3,1] tied_boundary:keep:1 remove:2 sum:1.000000000000
support=tau:2.2250738585072014e-308 top_k:3 retained:[0,1,2] positive_support:[0,1] \
probabilities:[0.500000000000,0.500000000000,0.000000000000]
sample=seed:36 top_k:3 sequence:[3,2,2,2,3,3,3,3] draws:8 greedy_token:3 greedy_draw:none
checkpoint=loaded_bytes:6330 rng_state:0x9e3779b97f4a7c38 vocabulary:5 context:2 eos:none \
max_new_tokens:4 prompt:[0] generated:[4,4] prefixes:[1,2] stop:context-limit \
full_prefix_calls:2 replay_identical:true
eos=vocabulary:5 context:2 eos_token:4 max_new_tokens:4 generated:[4] stop:eos full_prefix_calls:1
errors=temperature_zero:true top_k_zero:true nonfinite_logit:true rng_unchanged:true
history=greedy_token:3 greedy_rng_advanced:false top_k:3 retained:[3,1,2] \
retained_full_mass:0.927670511871 removed_full_mass:0.072329488129
next=keep-keys-and-values
"""

CACHE_REPORT = """\
config=layers:2 heads:2 model_width:4 context:4 tolerance:0.000000000002
prefill=prompt:[0,1] cache:0->2 layer_lengths:[2,2] shape:[1,2,2,2] cached_scores:12 \
complete_prefix_scores:16 max_abs_diff:0.000000000000 \
logits:[1.768374438,0.208825256,1.056205728,-0.451857108,0.388467944]
decode=token:2 position:2 cache:2->3 layer_lengths:[3,3] shape:[1,2,3,2] cached_scores:12 \
complete_prefix_scores:36 max_abs_diff:0.000000000000 \
logits:[0.032908910,-0.679583624,1.408381841,0.525525421,-0.588014095]
work=prefill_tokens:2 decode_tokens:1 layer_caches:2 cache_appends:6 qkv_rows:18 \
cached_scores:24 complete_prefix_scores:52 layer_storage_distinct:true
loaded=checkpoint_bytes:6330 context_capacity:2 rng_state:0x9e3779b97f4a7c38 prompt:[0] \
generated:[4,4] text:44 prefixes:[1,2] stop:context-limit final_cache:2 prefill_tokens:1 \
decode_tokens:1 cached_scores:6 complete_prefix_scores:10 tokens_match:true rng_match:true
eos=token:4 generated:[4] stop:eos final_cache:1 decode_tokens:0 tokens_match:true rng_match:true
reset=before:3 after:0 allocation_reused:true storage_unchanged:true work_zeroed:true \
replay_identical:true
errors=decode_before_prefill:true prefill_nonempty:true overflow:true rebuilt_model:true \
changed_config:true unchanged:true
history=lanes:4 cached_lengths:[1,2,3] cached_scores:24 complete_prefix_lengths:[2,3] \
complete_prefix_scores:52 avoided_scores:28
next=run-everything-from-text-to-text
"""
