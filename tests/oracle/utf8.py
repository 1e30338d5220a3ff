"""UTF-8 checked byte by byte from table 3-7 of the Unicode standard."""


def first_fault(data):
    """None, or (valid_up_to, error_len) with error_len None when the data end too early."""
    at = 0
    while at < len(data):
        lead = data[at]
        if lead < 0x80:
            at += 1
            continue
        if 0xC2 <= lead <= 0xDF:
            following = [(0x80, 0xBF)]
        elif 0xE0 <= lead <= 0xEF:
            second = {0xE0: (0xA0, 0xBF), 0xED: (0x80, 0x9F)}.get(lead, (0x80, 0xBF))
            following = [second, (0x80, 0xBF)]
        elif 0xF0 <= lead <= 0xF4:
            second = {0xF0: (0x90, 0xBF), 0xF4: (0x80, 0x8F)}.get(lead, (0x80, 0xBF))
            following = [second, (0x80, 0xBF), (0x80, 0xBF)]
        else:
            return at, 1
        for offset, (low, high) in enumerate(following, start=1):
            if at + offset == len(data):
                return at, None
            if not low <= data[at + offset] <= high:
                return at, offset
        at += 1 + len(following)
    return None
