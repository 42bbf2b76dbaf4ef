"""The hub that timm downloads its weights from."""

WEIGHTS_FILE = "model.safetensors"
SECONDS = 3.0
"""The longest wait for an answer of the hub."""


def reach_hub(name: str) -> None:
    """Raise OSError if the weights of a network of timm's are not here and the hub does not answer.

    One short request: the client of the hub itself would try six times, and each file by another name again.
    """
    import timm
    from huggingface_hub import model_info, try_to_load_from_cache

    known = timm.get_pretrained_cfg(name)
    if known is None or not known.hf_hub_id:
        return  # timm raises its own error, or downloads from elsewhere
    if isinstance(try_to_load_from_cache(known.hf_hub_id, WEIGHTS_FILE), str):
        return
    try:
        model_info(known.hf_hub_id, timeout=SECONDS)
    except Exception as error:  # of requests or of httpx, by the version of the client
        raise OSError(f"the hub does not answer: {error}") from error
