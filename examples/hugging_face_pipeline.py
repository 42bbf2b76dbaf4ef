"""A pipeline of Hugging Face with an adapter inside: `python hugging_face_pipeline.py`."""

from typing import Any

import torch
from PIL import Image
from transformers import ImageClassificationPipeline, ViTImageProcessor, pipeline

import equipoise as eq
from house_numbers import images
from hugging_face_model import rehearsed, trained_model


class AdaptivePipeline(ImageClassificationPipeline):
    """Answers by an adapter of the pipeline's model, which learns from every batch."""

    adapter: eq.Adapter

    def _forward(self, *inputs: Any, **_: Any) -> Any:
        """The model's output with calibrated logits: the scores of the pipeline are their softmax."""
        return self.adapter(*inputs)


def main() -> eq.Adapter:
    """Train, rehearse, classify; returns the adapter."""
    model = trained_model(channels=3)  # yours: the id of a model, in `pipeline` and in `from_pretrained`
    processor = ViTImageProcessor(size={"height": 32, "width": 32}, do_normalize=False)
    classify: Any = pipeline(
        "image-classification", model=model, image_processor=processor, pipeline_class=AdaptivePipeline
    )
    classify.adapter = adapter = eq.Poise(model, rehearsed(model, channels=3))

    stream, labels = images("stream", 400)
    pictures = [Image.fromarray(image).convert("RGB") for image in (stream[:, 0] * 255).byte().numpy()]
    answers = classify(pictures, batch_size=50, top_k=1)
    found = torch.tensor([model.config.label2id[answer[0]["label"]] for answer in answers])
    right = (found == labels).double().mean().item()
    print(f"right: {right:.2f}; estimated at the end of the stream: {adapter.accuracy}")
    return adapter


if __name__ == "__main__":
    main()
