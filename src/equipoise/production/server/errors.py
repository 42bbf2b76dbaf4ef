"""The refusals of a service, each with the HTTP status that says the same."""

from equipoise.errors import EquipoiseError


class ServiceError(EquipoiseError):
    """Anything a service refuses to do; nothing has changed."""

    status = 400


class InputError(ServiceError, ValueError):
    """Inputs that the model cannot take: a wrong shape, type or number of rows."""

    status = 422


class BusyError(ServiceError, RuntimeError):
    """The queue is full: try again later."""

    status = 429


class ClosedError(ServiceError, RuntimeError):
    """The service is stopping, or not ready yet."""

    status = 503


class TooManyStreamsError(ServiceError, RuntimeError):
    """A new stream would be one more than the limit."""

    status = 429


class UnknownStreamError(ServiceError, LookupError):
    """A stream that no batch has come to."""

    status = 404


class UnknownRequestError(ServiceError, LookupError):
    """A request id that was never given, or is forgotten."""

    status = 404


class UnknownSnapshotError(ServiceError, LookupError):
    """A rollback to a snapshot that there is not."""

    status = 409


class StorageError(ServiceError, OSError):
    """The state folder cannot be written: a full disk, or no permission."""

    status = 507


class ReplicaLostError(ServiceError, RuntimeError):
    """The process that holds the stream has stopped and is being replaced: try again."""

    status = 503
