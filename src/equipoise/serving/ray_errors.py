"""Errors of Ray as errors of a service."""

from equipoise.errors import EquipoiseError
from equipoise.serving.errors import BusyError, ReplicaLostError


def as_service_error(error: Exception, replica: int) -> Exception:
    """The error of a service that an error of a call to a replica stands for; unknown ones stay as they are.

    An error that the service itself raised in its process comes wrapped by Ray, and is unwrapped.
    """
    from ray.exceptions import RayActorError, RayTaskError
    from ray.serve.exceptions import (
        BackPressureError,
        DeploymentUnavailableError,
        ReplicaUnavailableError,
        RequestCancelledError,
    )

    lost = (RayActorError, DeploymentUnavailableError, ReplicaUnavailableError, RequestCancelledError)
    if isinstance(error, RayTaskError) and isinstance(error.cause, (EquipoiseError, *lost)):
        error = error.cause
    if isinstance(error, BackPressureError):
        return BusyError(f"too many requests wait for replica {replica}: try again later")
    if isinstance(error, lost):
        return ReplicaLostError(
            f"the process of replica {replica} has stopped and is being replaced; its streams go on from "
            "their last save: try again"
        )
    return error
