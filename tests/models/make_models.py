#!/usr/bin/env python3
"""Tiny random models of families that differ from others by a name, a number or the order of rows, and what their
makers' code computes from them.

    make_models.py FOLDER [NAME...]

Needs torch, transformers 4.57.6, safetensors and numpy. The models of LATER need transformers 5.24.0, and `internlm2`
and `minimax_m2` need mlx_lm instead. Each model is
FOLDER/NAME/model (config.json, model.safetensors in bf16) with golden.json and golden.safetensors beside it: for the
prompts `s5` and `s24` logits at every position and a greedy continuation of 8 tokens, in float32; or hidden states, of
models that embed.
"""

import importlib
import json
import pathlib
import sys

VOCABULARY, LAYERS, HIDDEN, HEADS, WIDTH, CONTEXT = 48, 2, 16, 4, 24, 64
STEPS = 8


def text_config(**more):
    common = dict(vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=WIDTH, num_hidden_layers=LAYERS,
                  num_attention_heads=HEADS, num_key_value_heads=2, max_position_embeddings=CONTEXT,
                  tie_word_embeddings=False, bos_token_id=0, eos_token_id=1, pad_token_id=2)
    return {**common, **more}


def vision_config(**more):
    return dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, image_size=8,
                patch_size=4, **more)


def falcon(**more):
    return dict(architectures=["FalconForCausalLM"], model_type="falcon", alibi=False, hidden_size=HIDDEN,
                num_attention_heads=HEADS, num_hidden_layers=LAYERS, vocab_size=VOCABULARY, layer_norm_epsilon=1e-5,
                max_position_embeddings=CONTEXT, bos_token_id=0, eos_token_id=1, **more)


# The fields of each config of transformers.
MODELS = {
    "falcon": falcon(multi_query=True, new_decoder_architecture=False, parallel_attn=True, bias=False),
    "falcon-new": falcon(new_decoder_architecture=True, num_kv_heads=2, bias=False),
    "falcon-sequential": falcon(multi_query=False, new_decoder_architecture=False, parallel_attn=False, bias=True),
    "ernie4_5": text_config(architectures=["Ernie4_5ForCausalLM"], model_type="ernie4_5", head_dim=8, use_bias=True),
    "mistral-headdim": text_config(architectures=["MistralForCausalLM"], model_type="mistral", head_dim=8,
                                   sliding_window=None),
    "stablelm-parallel": text_config(architectures=["StableLmForCausalLM"], model_type="stablelm",
                                     use_parallel_residual=True, qk_layernorm=True, partial_rotary_factor=0.5),
    "gemma3": dict(architectures=["Gemma3ForConditionalGeneration"], model_type="gemma3", image_token_index=47,
                   boi_token_index=46, eoi_token_index=45, mm_tokens_per_image=4, vision_config=vision_config(model_type="siglip_vision_model"),
                   text_config=text_config(model_type="gemma3_text", head_dim=8, sliding_window=4,
                                           sliding_window_pattern=2, query_pre_attn_scalar=8, tie_word_embeddings=True)),
    "llava": dict(architectures=["LlavaForConditionalGeneration"], model_type="llava", image_token_index=47,
                  vision_config=vision_config(model_type="clip_vision_model", projection_dim=8),
                  text_config=text_config(model_type="llama")),
    "mistral3": dict(architectures=["Mistral3ForConditionalGeneration"], model_type="mistral3", image_token_index=47,
                     vision_config=vision_config(model_type="pixtral", head_dim=4), spatial_merge_size=2,
                     text_config=text_config(model_type="mistral", head_dim=8, sliding_window=None)),
    "qwen2_vl": dict(architectures=["Qwen2VLForConditionalGeneration"], model_type="qwen2_vl", image_token_id=47,
                     vision_start_token_id=45, vision_end_token_id=44, video_token_id=46,
                     vision_config=dict(depth=1, embed_dim=8, hidden_size=HIDDEN, num_heads=2, patch_size=4),
                     text_config=text_config(model_type="qwen2_vl_text", head_dim=4,
                                             rope_scaling={"type": "mrope", "mrope_section": [1, 1, 0]})),
    "qwen3_vl": dict(architectures=["Qwen3VLForConditionalGeneration"], model_type="qwen3_vl", image_token_id=47,
                     vision_start_token_id=45, vision_end_token_id=44, video_token_id=46,
                     vision_config=dict(depth=1, hidden_size=8, out_hidden_size=HIDDEN, num_heads=2, patch_size=4,
                                        deepstack_visual_indexes=[0], intermediate_size=8),
                     text_config=text_config(model_type="qwen3_vl_text", head_dim=8,
                                             rope_scaling={"rope_type": "default", "mrope_section": [2, 1, 1]})),
    "qwen3_vl_moe": dict(architectures=["Qwen3VLMoeForConditionalGeneration"], model_type="qwen3_vl_moe", image_token_id=47,
                         vision_start_token_id=45, vision_end_token_id=44, video_token_id=46,
                         vision_config=dict(depth=1, hidden_size=8, out_hidden_size=HIDDEN, num_heads=2, patch_size=4,
                                            deepstack_visual_indexes=[0], intermediate_size=8),
                         text_config=text_config(model_type="qwen3_vl_moe_text", head_dim=8, num_experts=4,
                                                 num_experts_per_tok=2, moe_intermediate_size=8,
                                                 rope_scaling={"rope_type": "default", "mrope_section": [2, 1, 1]})),
}
# The fields of each config of transformers 5.
LATER = {
    # The buffers of decays are exact while the goldens are made, and not as they are stored.
    "minimax": text_config(architectures=["MiniMaxForCausalLM"], model_type="minimax", head_dim=4, num_hidden_layers=3,
                           layer_types=["linear_attention", "full_attention", "linear_attention"], block_size=8,
                           num_local_experts=4, num_experts_per_tok=2, linear_attn_alpha_factor=3.5,
                           linear_attn_beta_factor=1.5, mlp_alpha_factor=2.5, full_attn_beta_factor=0.5),
    # Both groups of heads choose two of up to six blocks, one of which is their own.
    "minimax_m3": text_config(architectures=["MiniMaxM3VLForCausalLM"], model_type="minimax_m3_vl_text", head_dim=4,
                              layer_types=["full_attention", "minimax_m3_sparse"], mlp_layer_types=["dense", "sparse"],
                              rope_parameters=dict(rope_type="default", rope_theta=5000000.0, partial_rotary_factor=0.5),
                              num_local_experts=4, num_experts_per_tok=2, intermediate_size=8,
                              dense_intermediate_size=WIDTH, shared_intermediate_size=8, index_n_heads=2,
                              index_head_dim=4, index_block_size=4, index_topk_blocks=2),
    # Two layers with tables, each in three tensors; the ids of layers are not in order.
    "qwen4_exp": text_config(architectures=["Qwen4ExpForCausalLM"], model_type="qwen4_exp_text", head_dim=8,
                             num_hidden_layers=4, num_key_value_heads=1,
                             layer_types=["linear_attention", "linear_attention", "indexed_attention", "linear_attention"],
                             rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5,
                                                  mrope_section=[1, 1, 0]),
                             linear_num_key_heads=1, linear_num_value_heads=2, linear_key_head_dim=8,
                             linear_value_head_dim=4, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8,
                             shared_expert_intermediate_size=8, output_gate_type="sigmoid", hc_count=3, hc_lowrank=4,
                             ple_layer_ids=[4, 1], ple_embed_dim=16, ngram_size=3, heads_per_ngram=2,
                             ngram_vocab_size_base=12, split_ngram_parts=3, make_ngram_vocab_size_divisible_by=8,
                             indexer_n_heads=3, indexer_kv_heads=1, indexer_head_dim=8, indexer_budget=6,
                             indexer_compress_ratio=3),
    # A window only, then also entries of 4 positions, of which an indexer chooses, and of 5.
    # Stored as DeepSeek publishes its models.
    "deepseek_v4": text_config(architectures=["DeepseekV4ForCausalLM"], model_type="deepseek_v4", hidden_size=32,
                               num_key_value_heads=1, head_dim=16, q_lora_rank=16, o_lora_rank=16, o_groups=2,
                               num_hidden_layers=3, compress_rates=dict(compressed_sparse_attention=4,
                                                                        heavily_compressed_attention=5),
                               layer_types=["sliding_attention", "compressed_sparse_attention",
                                            "heavily_compressed_attention"],
                               mlp_layer_types=["hash_moe", "moe", "moe"], n_routed_experts=4, num_experts_per_tok=2,
                               intermediate_size=32, sliding_window=6, index_n_heads=5, index_head_dim=8,
                               index_topk=3, hc_mult=3, hc_sinkhorn_iters=3, swiglu_limit=0.5,
                               partial_rotary_factor=0.25,
                               rope_parameters=dict(main=dict(rope_type="default", rope_theta=10000.0,
                                                              partial_rotary_factor=0.25),
                                                    compress=dict(rope_type="yarn", rope_theta=160000.0, factor=4.0,
                                                                  original_max_position_embeddings=16, beta_fast=32,
                                                                  beta_slow=1, attention_factor=1.0,
                                                                  partial_rotary_factor=0.25))),
    "embedding_gemma2": dict(architectures=["EmbeddingGemma2Model"], model_type="embedding_gemma2", vision_config=None,
                             audio_config=None,
                             text_config=text_config(model_type="embedding_gemma2_text", head_dim=4, num_hidden_layers=3,
                                                     layer_types=["sliding_attention", "full_attention", "full_attention"],
                                                     global_head_dim=8, num_global_key_value_heads=1, sliding_window=3,
                                                     hidden_size_per_layer_input=6, embedding_dim=12)),
}
# The fields of each config of mlx_lm.
MLX = {
    "internlm2": dict(architectures=["InternLM2ForCausalLM"], model_type="internlm2", vocab_size=VOCABULARY,
                      hidden_size=HIDDEN, intermediate_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
                      num_key_value_heads=2, max_position_embeddings=CONTEXT, rms_norm_eps=1e-5, bias=False,
                      rope_theta=1000000, rope_scaling={"type": "dynamic", "factor": 2.0}, tie_word_embeddings=False),
    "minimax_m2": dict(architectures=["MiniMaxM2ForCausalLM"], model_type="minimax", hidden_size=HIDDEN,
                       intermediate_size=WIDTH, num_attention_heads=HEADS, num_key_value_heads=2, head_dim=8,
                       max_position_embeddings=CONTEXT, num_experts_per_tok=2, num_local_experts=4,
                       shared_intermediate_size=0, num_hidden_layers=LAYERS, rms_norm_eps=1e-6, rope_theta=5000000,
                       rotary_dim=4, vocab_size=VOCABULARY, tie_word_embeddings=False, scoring_func="sigmoid",
                       use_qk_norm=True),
}


def prompts(numpy):
    generator = numpy.random.default_rng(7)
    # Leaves out the image placeholder tokens.
    return {f"s{n}": [int(i) for i in generator.integers(3, 40, n)] for n in (5, 24)}


def write(folder, config, facts, arrays, save):
    (folder / "model").mkdir(parents=True, exist_ok=True)
    (folder / "model/config.json").write_text(json.dumps(config, indent=1) + "\n")
    (folder / "golden.json").write_text(json.dumps({"sequences": facts}) + "\n")
    save(arrays, str(folder / "golden.safetensors"))


def of_transformers(folder, name):
    import numpy
    import torch
    import transformers
    from safetensors.numpy import save_file

    import published_deepseek_v4

    torch.manual_seed(11)
    kind = {**MODELS, **LATER}[name]
    config = transformers.AutoConfig.for_model(**{k: v for k, v in kind.items() if k != "architectures"})
    module = importlib.import_module(f"transformers.{'initialization' if name in LATER else 'modeling_utils'}")
    with module.no_init_weights():
        model = getattr(transformers, kind["architectures"][0])(config).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            # Norm weights differ from one, and weights are large enough to make errors visible.
            noise = torch.randn_like(parameter)
            parameter.copy_(1 + 0.3 * noise if parameter.dim() == 1 and "bias" not in key else 0.3 * noise)
            parameter.copy_(parameter.bfloat16().float())
            if name == "deepseek_v4":
                parameter.copy_(published_deepseek_v4.rounded(key, parameter))
        for key, buffer in model.named_buffers():
            # The experts of each token.
            if key.endswith("tid2eid"):
                order = [torch.randperm(kind["n_routed_experts"]) for _ in range(VOCABULARY)]
                buffer.copy_(torch.stack(order)[:, :buffer.shape[1]])
    facts, arrays = {}, {}
    with torch.no_grad():
        for prompt, ids in prompts(numpy).items():
            if kind["model_type"].startswith("embedding"):
                facts[prompt] = {"input_ids": ids}
                hidden = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
                arrays[f"last_hidden_state.{prompt}"] = hidden.float().numpy()
                continue
            logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
            greedy, row = [], list(ids)
            for _ in range(STEPS):
                row.append(int(model(input_ids=torch.tensor([row]), use_cache=False).logits[0, -1].argmax()))
                greedy.append(row[-1])
            facts[prompt] = {"input_ids": ids, "greedy_ids": greedy}
            arrays[f"logits.{prompt}"] = logits.float().numpy()
    model.bfloat16().save_pretrained(folder / "model")
    if name == "deepseek_v4":
        published_deepseek_v4.publish(folder / "model")
    written = json.loads((folder / "model/config.json").read_text())
    (folder / "model/generation_config.json").unlink(missing_ok=True)
    write(folder, written, facts, arrays, save_file)


def of_mlx(folder, name):
    import mlx.core as mx
    import numpy
    from mlx.utils import tree_flatten, tree_unflatten

    config = MLX[name]
    module = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    model = module.Model(module.ModelArgs.from_dict(config))
    generator = numpy.random.default_rng(11)

    def drawn(key, array):
        noise = 0.3 * generator.standard_normal(array.shape)
        return mx.array(1 + noise if array.ndim == 1 and "bias" not in key else noise).astype(mx.bfloat16)

    weights = [(key, drawn(key, array)) for key, array in tree_flatten(model.parameters())]
    model.update(tree_unflatten([(key, array.astype(mx.float32)) for key, array in weights]))
    facts, arrays = {}, {}
    for prompt, ids in prompts(numpy).items():
        greedy, row = [], list(ids)
        for _ in range(STEPS):
            row.append(int(model(mx.array([row]))[0, -1].argmax()))
            greedy.append(row[-1])
        facts[prompt] = {"input_ids": ids, "greedy_ids": greedy}
        arrays[f"logits.{prompt}"] = model(mx.array([ids]))[0]
    stored = {}
    for key, array in weights:
        # The original files have a separate tensor for each expert.
        for own, part in (("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2")):
            if f".switch_mlp.{own}." in key:
                for expert in range(array.shape[0]):
                    stored[key.replace(f".switch_mlp.{own}.", f".experts.{expert}.{part}.")] = array[expert]
                break
        else:
            stored[key] = array
    (folder / "model").mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "model/model.safetensors"), stored)
    write(folder, {**config, "model_type": name}, facts, arrays, lambda arrays, path: mx.save_safetensors(path, arrays))


def main():
    root, names = pathlib.Path(sys.argv[1]), sys.argv[2:]
    for name in names or [*MODELS, *LATER, *MLX]:
        (of_mlx if name in MLX else of_transformers)(root / name, name)
        print(name)


if __name__ == "__main__":
    main()
