"""Hugging Face's spelling of RoBERTa, XLM-R, CamemBERT: BERT's, with positions that skip padding and another head."""

from lineage.config import Index, Size
from lineage.rules import Copy, Dialect, Find, Reference, Rule, Tap

from .bert import BODY, DROPOUT, EMBED, POSITION_IDS, REFUSED, SIZES, SPELLINGS, TAPS
from .heads import CLASSES, apart, deep, plain

RULES, SUMMARY = deep("classifier.dense", "classifier.out_proj", "text")


def _dialect(model_type: str, vocab: int, family: str) -> Dialect:
    return Dialect(
        spec="bert",
        model_types=(model_type,),
        prefixes=("roberta.", ""),
        config=(
            *CLASSES,
            *DROPOUT,
            *SIZES,
            *REFUSED,
            Size("vocab_size", "vocab", vocab),
            Index("pad_token_id", "pad", 1),
        ),
        fixed={"head_activation": "gelu"},  # exact in the head, whatever hidden_act says
        finds=(Find("lm_head.", "head"), Find("{base}pooler.", "pooler")),
        tensors=(
            *BODY,
            Rule("lm_head.dense.{p}", "head.transform.dense.{p}"),
            Rule("lm_head.layer_norm.{p}", "head.transform.norm.{p}"),
            Rule("lm_head.decoder.weight", "head.weight"),
            Rule("lm_head.bias", "head.bias"),
            *(*RULES, *plain(choice="classifier", tokens="classifier", span="qa_outputs")),
        ),
        copies=(
            Copy("lm_head.decoder.weight", of=EMBED + "word_embeddings.weight", argument="tied"),
            Copy("lm_head.decoder.bias", of="lm_head.bias"),
        ),
        drops=(POSITION_IDS,),
        taps=(
            *TAPS,
            Tap("lm_head.layer_norm", "head.transform.act", at="input", feeds=("head.transform.dense",)),
            Tap("lm_head.layer_norm", "head.transform", entry="lm_head"),
            *SUMMARY,
        ),
        spellings=SPELLINGS,
        references=(
            Reference(f"{family}ForMaskedLM", ("head",), {"logits": "logits"}),
            *apart(family),
            Reference(f"{family}Model", ("pooler",), {"hidden": "last_hidden_state", "pooled": "pooler_output"}),
            Reference(f"{family}Model", (), {"hidden": "last_hidden_state"}),
        ),
    )


HUGGINGFACE = _dialect("roberta", 50265, "Roberta")
MULTILINGUAL = _dialect("xlm-roberta", 30522, "XLMRoberta")
FRENCH = _dialect("camembert", 30522, "Camembert")
