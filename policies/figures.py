"""How figures are written in the policies' sentences. Everything here is called while a reason is put into words."""

from balancer.policies.options import GB, KB, MB


def bytes_text(size: float) -> str:
    """A size as people say it: `10.0 GB`, `640 B`."""
    for unit, name in ((GB * KB, "TB"), (GB, "GB"), (MB, "MB"), (KB, "KB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size:.0f} B"


def rate_text(rate: float) -> str:
    """Rows per second."""
    return f"{rate:,.0f} rows/s" if rate >= 10 or not rate else f"{rate:.1f} rows/s"


def duration_text(seconds: float) -> str:
    """A duration as people write it in a file: `90d`, `36h`, `10m`."""
    for unit, name in ((86400.0, "d"), (3600.0, "h"), (60.0, "m")):
        if seconds >= unit and seconds % unit == 0:
            return f"{seconds / unit:.0f}{name}"
    return f"{seconds:g}s"


def share_text(share: float) -> str:
    """A share as a percentage."""
    return f"{100 * share:.0f} %" if share >= 0.1 or not share else f"{100 * share:.1f} %"
