"""NVIDIA's Xid and SXid codes: what each says, by itself.

Sources: NVIDIA, Xid errors catalogue (analyzing-xid-catalog, 2025-10); GPU memory error management
guide; fabric manager user guide, appendix D. What follows another code (43, 45, 63 after 48, 145
and 154 beside 149) is an effect there; alone it keeps its own, weaker meaning.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from outlast.diagnose.rules.table import Grade, Rule
from outlast.model.terms import FailureClass, Mechanism
from outlast.model.verdict import Role

C, G, R = FailureClass, Grade, Role
CATALOGUE, FABRIC = "nvidia Xid catalogue 2025-10", "nvidia fabric manager user guide, appendix D"
# the line's literal; codes are told apart by `logs/xids.py`
XID_PATTERN = r"\bxid ?(?:\((?:pci:)?(?P<device>[0-9a-f:.]{4,24})\)|error|\d|=|:)"
SXID_PATTERN = r"sxid ?\((?:pci:)?(?P<device>[0-9a-f:.]{4,24})\)"


def _rows() -> dict[int, Rule]:
    table: dict[int, Rule] = {}

    def put(
        codes: str,
        role: Role,
        failure_class: FailureClass | None,
        grade: Grade,
        *also: FailureClass,
    ) -> None:
        for code in map(int, codes.split()):
            table[code] = Rule(f"xid.{code}", "", role, CATALOGUE, failure_class, grade, also)

    # the program's, most often: the same code on many GPUs is software, on one GPU over several
    # jobs the GPU
    put("13 31", R.ROOT, C.SOFTWARE_BUG, G.POSSIBLE, C.USER_CODE)
    put(
        "11 25 32 60 68 69 80 82 83 84 86 88 89 96 97 98 99 100 101 102 103 104 105 139 141",
        R.ROOT,
        C.SOFTWARE_BUG,
        G.POSSIBLE,
        C.USER_CODE,
        C.GPU,
    )
    put("66 67 37 38 44 159 160 161 166 170", R.ROOT, C.SOFTWARE_BUG, G.HINT, C.GPU)
    put(
        "8 39 40 41 70 71 72 75 76 77 85 126 127 128 129 130 131 132 133 134 135",
        R.ROOT,
        C.GPU,
        G.HINT,
        C.SOFTWARE_BUG,
    )
    # effects of an earlier error, or of a process that was killed
    put("43 45", R.EFFECT, None, G.NONE)
    put("106 107 14 23 78 151 152 153", R.ADVICE, None, G.NONE)
    # memory of the device
    put("48", R.ROOT, C.HBM, G.LIKELY, C.SRAM, C.GPU)
    put("63 92 160 156", R.ROOT, C.HBM, G.POSSIBLE, C.GPU)
    put("64 140 157 161 168 171", R.ROOT, C.HBM, G.NAMED, C.GPU)
    put("94 95", R.ROOT, C.HBM, G.LIKELY, C.SRAM, C.GPU)
    put("172", R.ROOT, C.SRAM, G.NAMED, C.GPU)
    put("58", R.ROOT, C.HBM, G.LIKELY, C.GPU)
    # the device
    put("79", R.ROOT, C.GPU, G.NAMED, C.CHASSIS)
    put("46 61 62 143 158 169", R.ROOT, C.GPU, G.LIKELY)
    put("109", R.ROOT, C.GPU, G.POSSIBLE, C.SOFTWARE_BUG)
    put(
        "16 18 24 26 56 57 59 65 73 81 87 90 91 93 110 111 112 113 114 115 116 117 118 122 123 124"
        " 125 138 142",
        R.ROOT,
        C.GPU,
        G.POSSIBLE,
        C.SOFTWARE_BUG,
    )
    put("167", R.ROOT, C.GPU, G.LIKELY, C.CHASSIS, C.IO_BOARD)
    put("119 120", R.ROOT, C.GPU_SYSTEM_PROCESSOR, G.NAMED, C.GPU)
    put("54 162 163 164 165", R.ROOT, C.POWER_SUPPLY, G.POSSIBLE, C.GPU, C.CHASSIS)
    put("52 53", R.ROOT, C.THERMAL, G.LIKELY, C.GPU)
    # links
    put("74 136 144 145 146 147 148 149 150 155", R.ROOT, C.NVLINK, G.LIKELY, C.NETWORK, C.GPU)
    put("137 121", R.ROOT, C.NVLINK, G.POSSIBLE, C.SOFTWARE_BUG, C.GPU)
    # what the driver asks for: a verdict on the others
    put("154", R.MESSENGER, C.GPU, G.HINT)
    return table


XIDS: dict[int, Rule] = _rows()
XID_UNKNOWN = Rule("xid.other", "", R.ROOT, CATALOGUE, C.GPU, G.HINT, (C.SOFTWARE_BUG,))
XID_SRAM = Rule(
    "xid.sram",
    "",
    R.ROOT,
    CATALOGUE + ": the line names the SRAM",
    C.SRAM,
    G.LIKELY,
    (C.HBM, C.GPU),
)
XID_DRAM = Rule(
    "xid.dram",
    "",
    R.ROOT,
    CATALOGUE + ": the line names the frame buffer",
    C.HBM,
    G.NAMED,
    (C.GPU,),
)
XID_NONFATAL = Rule(
    "xid.nonfatal",
    "",
    R.ROOT,
    CATALOGUE + ": NVLink 5, nonfatal",
    C.NVLINK,
    G.POSSIBLE,
    (C.NETWORK, C.GPU),
)
XID_KILL = Rule("xid.many_effects", "", R.EFFECT, CATALOGUE)

CORRECTED_SXIDS = frozenset(
    map(
        int,
        [
            "11012",
            "11021",
            "11022",
            "11023",
            "12021",
            "12023",
            "15008",
            "15011",
            "19049",
            "19055",
            "19057",
            "19059",
            "19062",
            "19065",
            "19068",
            "19071",
            "24001",
            "24002",
            "24003",
            "22013",
            "10005",
        ],
    )
)
MILD_SXIDS = frozenset((20009, 20012, 11004, 22012, 10001, 10002, 10004))
# a replay that succeeded, refused accesses, a missed heartbeat: healthy switches log them
NOISY_SXIDS = frozenset((20001, 12028, 19084))
SXID_FATAL = Rule("sxid.fatal", "", R.ROOT, FABRIC, C.NVLINK, G.NAMED, (C.NETWORK,))
SXID_NONFATAL = Rule("sxid.nonfatal", "", R.ROOT, FABRIC, C.NVLINK, G.LIKELY, (C.NETWORK,))
SXID_NOISE = Rule("sxid.noise", "", R.ROOT, FABRIC, C.NVLINK, G.HINT, (C.NETWORK,))
SXID_CORRECTED = Rule("sxid.corrected", "", R.ADVICE, FABRIC)
SXID_HEAT = Rule(
    "sxid.heat",
    "",
    R.ROOT,
    FABRIC + ": 10004, thermal event of the host",
    C.THERMAL,
    G.LIKELY,
    (C.NVLINK,),
)

RECOVERY_ACTIONS = {
    "gpu reset": "reset the GPU",
    "node reboot": "reboot the node",
    "drain p2p": "drain work that uses peer access",
    "drain and reset": "drain the node, then reset the GPU",
    "none": "",
}
EFFECT_OF: dict[int, tuple[int, ...]] = {  # code -> codes that explain it on the same node
    63: (48, 94, 95, 171),
    64: (48, 94, 95, 171),
    92: (48, 94, 95),
    94: (48, 171, 172),
    95: (48, 171, 172),
    74: (79, 119, 120, 95),
    145: (149,),
    154: (48, 62, 74, 79, 94, 95, 119, 120, 140, 143, 144, 145, 149),
    31: (79, 48, 94, 95, 119),
    13: (79, 48, 94, 95, 119),
    109: (119, 120, 79, 149, 74),
    137: (149, 144, 74),
    62: (79,),
    119: (79,),
    32: (79,),
    8: (79, 119, 109),
    122: (79,),
}
DEVICE_NEEDLES = (
    b"xid (",
    b"xid:",
    b"xid error",
    b"xid=",
    b"xid 1",
    b"xid 3",
    b"xid 4",
    b"xid 6",
    b"xid 7",
    b"xid 9",
)
MECHANISM = Mechanism.EXCEPTION
