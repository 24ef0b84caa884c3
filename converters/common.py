"""What every Hugging Face config shares: keys of the base class, and the names of activations."""

from lineage.config import Entry, Inert, Only, inert

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "gelu_python": "gelu",
    "gelu_accurate": "gelu_new",
}

COMMON: tuple[Entry, ...] = (
    Inert("architectures", "the tensors in the file decide which heads there are", form="a list of names"),
    *(
        Inert(key, "tensors keep the type they have in the file", form="the name of a floating-point type")
        for key in ("dtype", "torch_dtype")
    ),
    Only("quantization_config", None),
    Only("is_encoder_decoder", False),
    *inert(
        "what the call returns, not what it computes",
        "output_hidden_states",
        "output_attentions",
        "return_dict",
        "use_cache",
    ),
    *inert("splits the same product into pieces", "chunk_size_feed_forward"),
    *inert("names of classes, for people", "id2label", "label2id", "num_labels", "problem_type", "finetuning_task"),
    *inert("where the file came from", "transformers_version", "_name_or_path", "name_or_path"),
    *inert("which token is which: the tokenizer's concern", "bos_token_id", "eos_token_id", "sep_token_id", "prefix"),
    *inert("training only", "initializer_range", "gradient_checkpointing"),
    *inert("how generation is called, not what a forward computes", "task_specific_params"),
    Inert("auto_map", "points at code in the repository, which is never run: the spec decides"),
    Inert("_attn_implementation_autoset", "which kernel computes the same product"),
)
PADDING = Inert("pad_token_id", "padding is told by the attention mask")
