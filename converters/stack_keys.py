"""What the configs of encoder–decoder models share."""

from lineage.config import Choice, Entry, Inert, Only, Size, inert

from .common import ACTIVATIONS, CACHED, COMMON, without

OTHERS = (*without(COMMON, "is_encoder_decoder"), *CACHED)


def sizes(width: int, layers: int, heads: int, mlp: int, act: str, context: int = 1024) -> tuple[Entry, ...]:
    """The keys of the two stacks' sizes."""
    stack = ("layers", "layers"), ("attention_heads", "heads"), ("ffn_dim", "mlp_width")
    also = {"layers": ("num_hidden_layers",), "attention_heads": ("num_attention_heads",)}
    most = {"layers": 4096, "heads": 10**6, "mlp_width": 10**6}
    numbers = {"layers": layers, "attention_heads": heads, "ffn_dim": mlp}
    return (
        Size("d_model", "width", width, ("hidden_size",)),
        *(
            Size(f"encoder_{theirs}", ours, numbers[theirs], also.get(theirs, ()), most=most[ours])
            for theirs, ours in stack
        ),
        *(Size(f"decoder_{theirs}", f"decoder_{ours}", numbers[theirs], most=most[ours]) for theirs, ours in stack),
        Size("max_position_embeddings", "context", context),
        Choice("activation_function", "activation", act, names=ACTIVATIONS),
        Only("is_encoder_decoder", True),
        Inert("decoder_start_token_id", "which token a target begins with: how generation is called"),
        *inert("training only", "dropout", "attention_dropout", "activation_dropout", "init_std"),
        *inert("training only", "encoder_layerdrop", "decoder_layerdrop", "classifier_dropout", "classif_dropout"),
        *inert("an older key that no class reads", "add_bias_logits", "add_final_layer_norm", "extra_pos_embeddings"),
        *inert("the class decides", "normalize_before", "normalize_embedding", "static_position_embeddings"),
    )
