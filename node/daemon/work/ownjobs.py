"""The parts of a daemon for the jobs that its own user submits."""

from ....state.views.jobs import Job
from ....tasks.jobs.checking.checks import ResultChecks
from ....tasks.jobs.checking.trust import Trust
from ....tasks.jobs.collecting import Collector
from ....tasks.jobs.desk import Desk
from ....tasks.jobs.kinds.table import KINDS
from ....tasks.jobs.replication.confirming import OwnReplication, rows_blob
from ....tasks.jobs.replication.replication import JobReplication
from ....tasks.jobs.results import Results
from ....tasks.jobs.submitting import Submitter
from ....tasks.tuning.moving.defaults import KIND as TUNING
from ....tasks.tuning.moving.spec import read_tuning
from ...settings.config import DataFolder
from .tools import JobTools


class OwnJobs:
    """What submits this node's jobs, waits for their results, and checks and stores these."""

    def __init__(self, tools: JobTools, folder: DataFolder, replication: JobReplication) -> None:
        node, seals = tools.node, tools.seals
        trust = Trust(node.host, node.state, node.peer)
        self.checks = ResultChecks(node.host, node.peer, tools.shop, KINDS, trust)
        """Checks of the results of this node's jobs."""
        self.desk = Desk(node, Results(node.host, folder.results), seals)
        self.submitter = Submitter(node, self.desk, trust.liars)
        self.collector = Collector(node, self.desk, tools.shelf, self.checks, seals)
        self.replication = OwnReplication(node.host, replication, self.desk, _blob_of)
        """Replication of the jobs that this node has submitted."""


def _blob_of(job: Job) -> tuple[str, int]:
    """Return the root and the bytes of the blob with the rows of a job. Raises BadSpec if its spec
    is invalid."""
    if job.kind == TUNING:
        rows = read_tuning(job.spec).rows
        return rows.root, rows.size
    return rows_blob(job)
