"""What `branchwise doctor` finds: the machine, the packages, the models, and whether the output is still exact here."""

from .examination import examine
from .finding import Finding
from .speed import measured_speed

__all__ = ["Finding", "examine", "measured_speed"]
