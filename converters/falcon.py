"""Hugging Face's spelling of Falcon: BLOOM's names, norms named by how many a layer has, keys fused by their groups."""

from lineage.config import Choice, Flag, Inert, Number, Only, RotaryKeys, Size, inert
from lineage.rules import Dialect, Fault, Reference, Rule, Tap

from .bloom import BLOCK, ENDS, LAYER, MLP, RULES, TABLE, TAPS, TIED
from .common import ACTIVATIONS, CACHED, COMMON, PADDING

HUGGINGFACE = Dialect(
    spec="falcon",
    model_types=("falcon",),
    prefixes=("transformer.", ""),
    config=(
        *(*COMMON, *CACHED, PADDING),
        *(Size("vocab_size", "vocab", 65024), Size("hidden_size", "width", 4544, ("n_embed",))),
        *(Size("num_hidden_layers", "layers", 32, most=4096), Size("num_attention_heads", "heads", 71)),
        *(Size("num_kv_heads", "kv_heads", None), Size("ffn_hidden_size", "mlp_width", None)),
        Choice("activation", "activation", "gelu", names=ACTIVATIONS),
        Number("layer_norm_epsilon", "eps", 1e-5),
        RotaryKeys("rope_parameters"),
        Flag("new_decoder_architecture", "grouped", False),
        Flag("multi_query", "multi_query", True),
        Flag("parallel_attn", "parallel", True),
        Size("num_ln_in_parallel_attn", "norms", None),
        Flag("alibi", "alibi", False),
        Flag("bias", "bias", False),
        Flag("tie_word_embeddings", "tied", True),
        Only("head_dim", None),
        Inert("max_position_embeddings", "a length for people, and for rotary scalings that need one"),
        *inert("training only", "hidden_dropout", "attention_dropout"),
        *inert("today's class does not read it", "apply_residual_connection_post_layernorm", "_is_quantized"),
    ),
    tensors=(
        TABLE,
        Rule(LAYER + "input_layernorm.{p}", BLOCK + "norm_input.{p}"),
        *(
            Rule(
                LAYER + theirs + ".{p}", BLOCK + ours + ".norm_input.{p}", where=lambda model: model.blocks[0].parallel
            )
            for theirs, ours in (("ln_attn", "attention"), ("ln_mlp", "mlp"))
        ),
        *(
            Rule(LAYER + theirs + ".{p}", BLOCK + ours + ".norm_input.{p}", where=lambda m: not m.blocks[0].parallel)
            for theirs, ours in (("input_layernorm", "attention"), ("post_attention_layernorm", "mlp"))
        ),
        *(*RULES, *ENDS),
    ),
    copies=(TIED,),
    faults=(Fault("eager", "Alibi", "adds ALiBi twice, once with the mask"),),
    taps=(
        *TAPS,
        Tap(MLP + "act", BLOCK + "mlp.body.act"),
        Tap("{base}word_embeddings", "embed"),
        Tap(LAYER + "post_attention_layernorm", BLOCK + "attention", at="input", entry=LAYER[:-1]),
        Tap(LAYER[:-1], BLOCK + "mlp", entry=LAYER + "post_attention_layernorm"),
    ),
    references=(Reference("FalconForCausalLM", ("head",), {"logits": "logits"}),),
)
