"""Errors of Ray as errors of a service."""

from equipoise.errors import EquipoiseError
from equipoise.production.server.errors import BusyError, ReplicaLostError
from equipoise.production.server.ray.modules import import_ray


def as_service_error(error: Exception, replica: int) -> Exception:
    """The error of a service that an error of a call to a replica stands for; unknown ones stay as they are.

    An error that the service itself raised in its process comes wrapped by Ray, and is unwrapped.
    """
    ray, serve = import_ray()
    lost = (
        ray.exceptions.RayActorError,
        serve.exceptions.DeploymentUnavailableError,
        serve.exceptions.ReplicaUnavailableError,
        serve.exceptions.RequestCancelledError,
    )
    cause = getattr(error, "cause", None)
    if isinstance(error, ray.exceptions.RayTaskError) and isinstance(cause, (EquipoiseError, *lost)):
        error = cause
    if isinstance(error, serve.exceptions.BackPressureError):
        return BusyError(f"too many requests wait for replica {replica}: try again later")
    if isinstance(error, lost):
        return ReplicaLostError(
            f"the process of replica {replica} has stopped and is being replaced; its streams go on from "
            "their last save: try again"
        )
    return error
