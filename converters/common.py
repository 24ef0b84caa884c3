"""What every Hugging Face config shares: keys of the base class, and the names of activations."""

from lineage.config import Choice, Entry, Flag, Index, Inert, Number, Only, RotaryKeys, Size, StorageKeys, inert

from .generation import GENERATION

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "gelu_python": "gelu",
    "gelu_accurate": "gelu_new",
    "gelu_python_tanh": "gelu_new",
    "gelu_fast": "gelu_fast",
    "quick_gelu": "quick_gelu",
    "relu2": "relu2",
    "tanh": "tanh",
}

COMMON: tuple[Entry, ...] = (
    Inert("architectures", "the tensors in the file decide which heads there are", form="a list of names"),
    *(
        Inert(key, "tensors keep the type they have in the file", form="the name of a floating-point type")
        for key in ("dtype", "torch_dtype")
    ),
    StorageKeys("quantization_config"),
    Only("is_encoder_decoder", False),
    # no class lists these, and its base obeys them all the same: other layers, other names, other code, other weights
    *(Only(key, None) for key in ("per_layer_config", "attribute_map", "fusion_config", "transformers_weights")),
    *inert("what the call returns, not what it computes", "output_hidden_states", "output_attentions", "return_dict"),
    *inert("what it keeps for another call, not what it computes", "tie_last_hidden_states", "use_cache"),
    *inert("splits the same product into pieces", "chunk_size_feed_forward"),
    *inert("names of classes, for people", "id2label", "label2id", "num_labels", "finetuning_task"),
    Inert("problem_type", "which loss trains a head", form="the name of a loss"),
    *inert("where the file came from", "transformers_version", "_name_or_path", "name_or_path", "_commit_hash"),
    *inert("which token is which: the tokenizer's concern", "bos_token_id", "eos_token_id", "sep_token_id", "prefix"),
    *inert("training only", "initializer_range", "gradient_checkpointing"),
    *inert("how generation is called, not what a forward computes", "task_specific_params", *GENERATION),
    Inert("auto_map", "points at code in the repository, which is never run: the spec decides"),
    *inert(
        "which kernel computes the same product",
        "_attn_implementation_autoset",
        "_attn_implementation",
        "attn_implementation",
        "_experts_implementation",
        "experts_implementation",
    ),
    *inert("how the weights are spread over devices", "distributed_config"),
)
MASKED = (Only("is_causal", True), *(Only(key, None) for key in ("attention_chunk_size", "kv_sharing_modes")))
CACHED = (*MASKED, Only("layer_types", None), Only("sliding_window", None))
"""What the reference's masks and cache obey even where its layers do not: with one of these, generation forgets."""
KINDS = {"sliding_attention": "window", "full_attention": "full"}
PADDING = Inert("pad_token_id", "padding is told by the attention mask")


def keys(
    vocab: int,
    mlp_width: int,
    eps: float,
    size: tuple[int, int, int] = (4096, 32, 32),
    *,
    kv_heads: int | None = 32,
    kv_null: bool = False,
    head: int | None = None,
    head_kind: type[Size] = Size,
    theta: float = 10000.0,
    tied: bool = False,
    act: str | None = "hidden_act",
    mlp: str = "intermediate_size",
    padding: int | None = None,
) -> tuple[Entry, ...]:
    """The keys that differ in their defaults alone. size: width, layers, heads. kv_null: null means all of them."""
    return (
        *(Size("hidden_size", "width", size[0]), Size("num_hidden_layers", "layers", size[1], most=4096)),
        Size("num_attention_heads", "heads", size[2]),
        Inert("max_position_embeddings", "a length for people, and for rotary scalings that need one"),
        *inert("training only", "attention_dropout"),
        *((Choice(act, "activation", "silu", names=ACTIVATIONS),) if act else ()),
        Size("vocab_size", "vocab", vocab),
        Size(mlp, "mlp_width", mlp_width),
        Size("num_key_value_heads", "kv_heads", kv_heads, nullable=kv_null),
        head_kind("head_dim", "head_size", head),
        Number("rms_norm_eps", "eps", eps),
        Index("pad_token_id", "padding", padding, nullable=True, none=-1),
        Flag("tie_word_embeddings", "tied", tied),
        RotaryKeys("rope_parameters", theta=theta),
    )


def without(entries: tuple[Entry, ...], *names: str) -> tuple[Entry, ...]:
    """The entries but for those of these keys."""
    return tuple(entry for entry in entries if entry.key not in names)
