//! Keys of configs that families can ignore: they do not change the output of a model when it
//! generates or embeds.

use serde_json::Value;

/// Keys for housekeeping, training, generation defaults and vision. Flags that announce tensors,
/// such as biases or tied heads, are here too, because the tensors themselves show it.
const HARMLESS: &[&str] = &[
    "attention_bias",
    "attention_out_bias",
    "embedding_initializer_range",
    "enable_moe_fp32_combine",
    "moe_shared_expert_overlap",
    // The sum of two sizes that are read.
    "qk_head_dim",
    "z_loss_coefficient",
    "architectures",
    "attn_implementation",
    "auto_map",
    "classifier_bias",
    "use_mtp",
    "repad_logits_with_grad",
    "sparse_prediction",
    "sparse_pred_ignore_index",
    "reference_compile",
    "seq_length",
    "max_sequence_length",
    "max_seq_length",
    "matryoshka_dimensions",
    "max_seq_len",
    "deterministic_flash_attn",
    "directionality",
    "aux_loss_alpha",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bias",
    "cache_implementation",
    "chunk_size_feed_forward",
    "compression_config",
    "conv_bias",
    "decoder_bias",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "ep_size",
    "exponential_decay_length_penalty",
    "finetuned",
    "finetuning_task",
    "gradient_checkpointing",
    "head_bias",
    "id2label",
    "is_llama_config",
    "keys_to_ignore_at_inference",
    "label2id",
    "length_penalty",
    "lm_head_bias",
    "max_length",
    "max_new_tokens",
    "min_length",
    "mlp_bias",
    "model_max_length",
    "model_name",
    "no_repeat_ngram_size",
    "norm_bias",
    "num_beam_groups",
    "num_beams",
    "num_labels",
    "num_nextn_predict_layers",
    "num_return_sequences",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "qkv_bias",
    "quantization",
    "quantization_config",
    "remove_invalid_values",
    "reorder_and_upcast_attn",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    // Read where scores are computed.
    "sbert_ce_default_activation_function",
    "sentence_transformers",
    "seq_aux",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tie_embedding",
    "tie_encoder_decoder",
    "tie_weights_",
    "tie_word_embeddings",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "typical_p",
    "use_bfloat16",
    "use_bias",
    "use_cache",
    "use_embedding_sharing",
    "use_qkv_bias",
    "use_return_dict",
    // Text has only one of the several kinds of positions.
    "mrope_interleaved",
    "mrope_section",
    // Kernels and initial values of mixers with a recurrent state, and announcements of biases.
    "chunk_size",
    "mamba_chunk_size",
    "mamba_conv_bias",
    "mamba_proj_bias",
    "mamba_ssm_cache_dtype",
    "mamba_ssm_dtype",
    "num_logits_to_keep",
    "rescale_prenorm_residual",
    "residual_in_fp32",
    "time_step_floor",
    "use_conv_bias",
    "use_mamba_kernels",
    // Belongs to mixers with a recurrent state. Families that do not read it have no such mixers.
    "time_step_limit",
];

/// Prefixes of such keys.
const BEGINNINGS: &[&str] = &[
    "_",
    "audio_",
    "flash_attn",
    "forced_",
    "image_",
    "init_",
    "initializer_",
    "mtp_",
    "neftune_",
    "num_mtp",
    "output_",
    "summary_",
    "pooler_",
    "unsloth_",
    "use_flash_",
    "video_",
    "vision_",
];
/// Suffixes of such keys.
const ENDINGS: &[&str] = &[
    "_dropout",
    "_dropout_prob",
    "_pdrop",
    "_jitter_noise",
    "_loss",
    "_loss_coef",
    "_token_id",
    "_token_ids",
    "_token_index",
    "_version",
];

/// Keys that are harmless with one value only, which means that the feature is off.
const OFF: &[(&str, bool)] = &[
    ("add_cross_attention", false),
    ("is_decoder", false),
    ("is_encoder_decoder", false),
    ("rope_interleaved", false),
    ("use_bidirectional_attention", false),
    ("use_mrope", false),
    ("use_sliding_window", false),
];

/// Harmless values of a key.
enum Values {
    Any,
    Text(&'static str),
    Number(f64),
    Flag(bool),
}
use Values::{Any, Flag, Number, Text};

/// Keys that are harmless in one family: keys that transformers ignores too, keys that apply only
/// together with another key that the family reads, and keys with the one value that the family
/// implements.
const OF_FAMILIES: &[(&str, &[(&str, Values)])] = &[
    ("qwen2", WINDOWS),
    ("qwen2_moe", WINDOWS),
    ("qwen3", WINDOWS),
    ("qwen3_moe", WINDOWS),
    (
        "smollm3",
        &[("layer_types", Any), ("max_window_layers", Any), ("no_rope_layer_interval", Any), ("sliding_window", Any)],
    ),
    (
        "cohere2",
        &[
            ("layer_switch", Any),
            ("order_of_interleaved_layers", Text("local_attn_first")),
            ("position_embedding_type", Text("rope_gptj")),
            ("rotary_pct", Number(1.0)),
            ("use_gated_activation", Flag(true)),
            ("use_parallel_block", Flag(true)),
            ("use_parallel_embedding", Any),
        ],
    ),
    ("deepseek_v2", &[("n_group", Any), ("topk_group", Any)]),
    ("deepseek_v3", &[("topk_method", Any)]),
    ("deepseek_v32", &[("layer_types", Any), ("scoring_func", Text("sigmoid")), ("topk_method", Text("noaux_tc"))]),
    (
        "deepseek_v4",
        &[
            ("dspark_block_size", Any),
            ("dspark_markov_rank", Any),
            ("dspark_noise_token_id", Any),
            ("dspark_target_layer_ids", Any),
            ("expert_dtype", Any),
            ("topk_method", Text("noaux_tc")),
        ],
    ),
    (
        "glm_moe_dsa",
        &[
            ("indexer_rope_interleave", Flag(true)),
            ("layer_types", Any),
            ("rope_interleave", Flag(true)),
            ("scoring_func", Text("sigmoid")),
            ("topk_method", Text("noaux_tc")),
        ],
    ),
    (
        "bloom",
        &[
            ("attention_softmax_in_fp32", Any),
            ("bias_dropout_fusion", Any),
            ("masked_softmax_fusion", Any),
            ("offset_alibi", Any),
            ("skip_bias_add", Any),
            ("skip_bias_add_qkv", Any),
            ("slow_but_exact", Any),
        ],
    ),
    ("falcon_h1", &[("mamba_use_mlp", Flag(true)), ("mlp_expansion_factor", Any), ("projectors_bias", Any)]),
    // Learned positions are not used beside slopes; the tensors tell which biases there are.
    (
        "mpt",
        &[
            ("attn_impl", Any),
            ("attn_type", Text("multihead_attention")),
            ("attn_uses_sequence_id", Flag(false)),
            ("embedding_fraction", Any),
            ("learned_pos_emb", Any),
            ("no_bias", Any),
            ("norm_type", Text("low_precision_layernorm")),
            ("tokenizer_name", Any),
            ("verbose", Any),
        ],
    ),
    ("gemma3n", &[("altup_coef_clip", Any), ("altup_lr_multiplier", Any), ("query_pre_attn_scalar", Any)]),
    ("xglm", &[("dropout", Any), ("layerdrop", Any)]),
    ("exaone4", &[("sliding_window_pattern", Any)]),
    (
        "exaone_moe",
        &[
            ("first_last_k_dense_replace", Any),
            ("is_moe_layer", Any),
            ("scoring_func", Text("sigmoid")),
            ("sliding_window_pattern", Any),
            ("topk_method", Text("noaux_tc")),
        ],
    ),
    ("glm4_moe_lite", &[("scoring_func", Text("sigmoid")), ("topk_method", Text("noaux_tc"))]),
    ("distilbert", &[("dropout", Any), ("sinusoidal_pos_embds", Any)]),
    // A lower bound of the sum of the chosen scores, which are at least 1e-12 in practice.
    (
        "ernie4_5_moe",
        &[
            ("moe_capacity", Any),
            ("moe_gate", Text("topk")),
            ("moe_use_aux_free", Any),
            ("moe_norm_min", Number(1e-12)),
        ],
    ),
    (
        "eurobert",
        &[("bos_token", Any), ("eos_token", Any), ("mask_token", Any), ("pad_token", Any), ("classifier_pooling", Any)],
    ),
    (
        "gemma4",
        // The tensors tell whether values are keys.
        &[("attention_k_eq_v", Any), ("global_head_dim", Any), ("num_global_key_value_heads", Any)],
    ),
    ("granitemoehybrid", &[("normalization_function", Text("rmsnorm")), ("num_experts_per_tok", Any)]),
    ("hunyuan", HUNYUAN),
    ("hunyuan_moe", HUNYUAN),
    (
        "gte",
        &[
            ("layer_norm_type", Text("layer_norm")),
            ("logn_attention_clip1", Any),
            ("logn_attention_scale", Flag(false)),
            ("pack_qkv", Flag(true)),
            ("position_embedding_type", Text("rope")),
            ("unpad_inputs", Any),
            ("use_memory_efficient_attention", Any),
        ],
    ),
    (
        "kimi_linear",
        &[
            ("moe_router_activation_func", Text("sigmoid")),
            ("scoring_func", Text("sigmoid")),
            ("use_grouped_topk", Flag(true)),
        ],
    ),
    (
        "nomic_bert",
        &[
            ("causal", Flag(false)),
            ("dense_seq_output", Any),
            ("fused_bias_fc", Any),
            ("fused_dropout_add_ln", Any),
            ("mlp_fc1_bias", Any),
            ("mlp_fc2_bias", Any),
            ("pad_vocab_size_multiple", Any),
            ("parallel_block", Flag(false)),
            ("parallel_block_tied_norm", Any),
            ("qkv_proj_bias", Any),
            ("rotary_emb_fraction", Number(1.0)),
            ("scale_attn_by_inverse_layer_idx", Flag(false)),
            ("scale_attn_weights", Flag(true)),
            ("use_rms_norm", Flag(false)),
            ("use_xentropy", Any),
        ],
    ),
    ("mllama", &[("dropout", Any)]),
    // Half of `local_attention`.
    ("modernbert-decoder", &[("sliding_window", Any)]),
    (
        "dots1",
        &[("scoring_func", Text("noaux_tc")), ("scoring_func", Text("sigmoid")), ("topk_method", Text("noaux_tc"))],
    ),
    (
        "afmoe",
        &[
            ("load_balance_coeff", Any),
            ("n_group", Number(1.0)),
            ("num_expert_groups", Number(1.0)),
            ("num_limited_groups", Number(1.0)),
            ("route_norm", Flag(true)),
            ("score_func", Text("sigmoid")),
            ("topk_group", Number(1.0)),
            ("use_grouped_mm", Any),
        ],
    ),
    ("solar_open", &[("use_qk_norm", Flag(false))]),
    ("bamba", &[("mamba_dt_rank", Any)]),
    (
        "hy_v3",
        &[
            ("enable_attention_fp32_softmax", Any),
            ("enable_lm_head_fp32", Any),
            ("moe_router_enable_expert_bias", Any),
            ("moe_router_use_sigmoid", Flag(true)),
            ("qk_norm", Flag(true)),
            ("route_norm", Flag(true)),
            ("use_grouped_mm", Any),
        ],
    ),
    ("laguna", &[("decoder_sparse_step", Number(1.0)), ("norm_topk_prob", Flag(true))]),
    (
        "jina_embeddings_v3",
        &[
            ("task_instructions", Any),
            ("load_trained_adapters", Any),
            ("lora_adaptations", Any),
            ("lora_alpha", Any),
            ("lora_dropout_p", Any),
            ("lora_main_params_trainable", Any),
            ("lora_rank", Any),
            ("output_past", Any),
            ("position_embedding_type", Text("rotary")),
        ],
    ),
    ("apertus", &[("post_norm", Flag(false)), ("qk_norm", Flag(true))]),
    ("llama4", &[("for_llm_compressor", Any)]),
    (
        "mimo_v2_flash",
        &[
            ("add_full_attention_sink_bias", Flag(false)),
            ("add_swa_attention_sink_bias", Flag(true)),
            ("attention_chunk_size", Any),
            ("scoring_func", Text("sigmoid")),
            ("sliding_window", Any),
            ("topk_method", Text("noaux_tc")),
        ],
    ),
    ("granitemoe", &[("activation_function", Any)]),
    (
        "llama",
        &[
            ("is_composition", Any),
            ("perceiver_config", Any),
            ("pixel_shuffle_factor", Any),
            ("qk_layer_norms", Flag(false)),
            ("use_resampler", Any),
        ],
    ),
    ("mistral", &[("is_composition", Any), ("norm_eps", Any)]),
    ("qwen3", &[("use_qk_norm", Flag(true))]),
    ("jamba", &[("use_associative_scan", Any), ("use_mambapy", Any)]),
    (
        "mamba",
        &[
            ("d_inner", Any),
            ("d_model", Any),
            ("dt_rank", Any),
            ("fused_add_norm", Any),
            ("n_layer", Any),
            ("pad_vocab_size_multiple", Any),
            ("rms_norm", Flag(true)),
            ("expand", Any),
            ("time_step_init_scheme", Any),
            ("time_step_max", Any),
            ("time_step_min", Any),
            ("time_step_scale", Any),
            ("use_associative_scan", Any),
            ("use_mambapy", Any),
        ],
    ),
    (
        "mamba2",
        &[
            ("intermediate_size", Any),
            ("norm_before_gate", Any),
            ("rms_norm", Flag(true)),
            ("time_step_init_scheme", Any),
            ("time_step_scale", Any),
            ("expand", Any),
            ("hidden_act", Text("silu")),
            ("time_step_max", Any),
            ("time_step_min", Any),
            ("time_step_rank", Any),
        ],
    ),
    // Repeated among the parameters of RoPE.
    ("ministral3", &[("max_position_embeddings", Any)]),
    ("mistral4", &[("max_position_embeddings", Any)]),
    (
        "nemotron_h",
        &[
            ("norm_eps", Any),
            ("rms_norm_eps", Any),
            ("time_step_rank", Any),
            ("mamba_num_groups", Any),
            ("mamba_state_dim", Any),
            ("mamba_d_state", Any),
            ("num_query_groups", Any),
            ("attention_head_dim", Any),
            ("expand", Any),
            ("mamba_hidden_act", Text("silu")),
            ("n_shared_experts", Any),
            // The list of parts has the number of layers.
            ("num_hidden_layers", Any),
            ("time_step_max", Any),
        ],
    ),
    (
        "qwen4_exp",
        &[
            ("attn_output_gate", Flag(true)),
            // The number of unused rows behind the tables of n-grams follows from it.
            ("make_ngram_vocab_size_divisible_by", Any),
            ("mtp", Any),
            ("number_of_conv_states", Any),
        ],
    ),
    ("qwen3_5", QWEN3_5),
    ("qwen3_5_moe", QWEN3_5),
    (
        "falcon",
        &[
            ("apply_residual_connection_post_layernorm", Flag(false)),
            ("ff_factor", Any),
            ("num_kv_heads", Any),
            ("num_ln_in_parallel_attn", Any),
            ("parallel_attn", Any),
        ],
    ),
    ("gpt2", &[("n_ctx", Any), ("n_special", Any), ("predict_special_tokens", Any)]),
    // A number of positions that transformers computes at a time.
    ("minimax", &[("block_size", Any)]),
    (
        "minimax_m3",
        &[
            ("attention_output_gate", Flag(false)),
            ("hidden_act", Any),
            ("n_shared_experts", Number(1.0)),
            ("qk_norm_type", Text("per_head")),
            // The class reads `partial_rotary_factor` only, which published configs have, too.
            ("rotary_dim", Any),
            ("scoring_func", Text("sigmoid")),
            ("use_gemma_norm", Flag(true)),
            ("use_qk_norm", Flag(true)),
            ("use_routing_bias", Any),
        ],
    ),
    (
        "minimax_m2",
        &[
            // Belongs to the linear attention of the previous model; this one has none.
            ("attn_type_list", Any),
            ("layernorm_full_attention_beta", Any),
            ("layernorm_linear_attention_beta", Any),
            ("layernorm_mlp_beta", Any),
            ("mlp_intermediate_size", Any),
            ("qk_norm_type", Text("per_layer")),
            ("scoring_func", Text("sigmoid")),
            ("shared_intermediate_size", Number(0.0)),
            ("shared_moe_mode", Any),
            ("use_qk_norm", Flag(true)),
            ("use_routing_bias", Flag(true)),
        ],
    ),
    ("ernie4_5", &[("compression_ratio", Number(1.0))]),
    ("gemma2", &[("sliding_window_size", Any)]),
    ("phi", &[("qk_layernorm", Flag(false))]),
    ("stablelm", &[("rope_pct", Any), ("rotary_scaling_factor", Number(1.0))]),
    ("codegen", &[("scale_attn_weights", Flag(true)), ("n_ctx", Any)]),
    ("gptj", &[("scale_attn_weights", Flag(true)), ("n_ctx", Any), ("rotary", Flag(true))]),
    (
        "gpt_bigcode",
        &[
            ("inference_runner", Any),
            ("pad_key_length", Any),
            ("pre_allocate_kv_cache", Any),
            ("scale_attn_weights", Flag(true)),
            ("validate_runner_input", Any),
            ("attention_softmax_in_fp32", Any),
            ("scale_attention_softmax_in_fp32", Any),
        ],
    ),
    ("gpt_neox", &[("rotary_pct", Any)]),
    (
        "olmo_hybrid",
        &[
            ("linear_a_log_max", Any),
            ("linear_a_log_min", Any),
            ("linear_dt_init_floor", Any),
            ("linear_dt_max", Any),
            ("linear_dt_min", Any),
        ],
    ),
    ("opt", &[("dropout", Any), ("enable_bias", Any), ("layerdrop", Any)]),
    ("gpt_oss", &[("experts_per_token", Any), ("initial_context_length", Any)]),
    ("lfm2", LFM2),
    ("lfm2_moe", LFM2),
    (
        "modernbert",
        &[
            ("classifier_activation", Any),
            ("classifier_pooling", Any),
            ("layer_norm_eps", Any),
            ("position_embedding_type", Text("absolute")),
        ],
    ),
    ("phi3", &[("full_attn_mod", Any), ("interpolate_factor", Any), ("original_max_position_embeddings", Any)]),
    (
        "starcoder2",
        &[
            ("attention_softmax_in_fp32", Any),
            ("layer_norm_epsilon", Any),
            ("scale_attention_softmax_in_fp32", Any),
            ("scale_attn_weights", Flag(true)),
            ("activation_function", Any),
            ("mlp_type", Text("default")),
            ("norm_type", Text("layer_norm")),
        ],
    ),
    ("xlm-roberta", &[("output_past", Any)]),
];
const LFM2: &[(&str, Values)] = &[
    ("block_dim", Any),
    ("block_ffn_dim_multiplier", Any),
    ("block_multiple_of", Any),
    ("block_mlp_init_scale", Any),
    ("block_norm_eps", Any),
    ("block_out_init_scale", Any),
    ("block_use_xavier_init", Any),
    ("conv_dim", Any),
    ("conv_dim_out", Any),
    ("conv_use_xavier_init", Any),
    ("num_heads", Any),
    ("theta", Any),
    ("use_pos_enc", Any),
    ("block_use_swiglu", Flag(true)),
];
const QWEN3_5: &[(&str, Values)] = &[("attn_output_gate", Flag(true))];
/// Keys of the published configs that belong to other models of the same code.
const HUNYUAN: &[(&str, Values)] = &[
    ("group_limited_greedy", Flag(false)),
    ("im_end_id", Any),
    ("im_newline_id", Any),
    ("im_start_id", Any),
    ("mask_init_id", Any),
    ("moe_drop_tokens", Any),
    ("moe_random_routing_dropped_token", Any),
    ("n_group", Flag(false)),
    ("norm_topk_prob", Flag(true)),
    ("num_media_embeds", Any),
    ("org_vocab_size", Any),
    ("pad_id", Any),
    ("pool_type", Any),
    ("position_embedding_xdrope", Flag(false)),
    ("routed_scaling_factor", Flag(false)),
    ("skip_cls_token", Any),
    ("text_end_id", Any),
    ("text_start_id", Any),
    ("topk_group", Flag(false)),
    ("add_classification_head", Flag(false)),
    ("class_num", Any),
    ("cla_share_factor", Any),
    ("dense_list", Any),
    ("moe_layer_num_skipped", Number(0.0)),
    ("norm_type", Text("rms")),
    ("use_cla", Flag(false)),
    ("use_mixed_mlp_moe", Any),
    ("use_rotary_pos_emb", Flag(true)),
];
/// Keys that apply if `use_sliding_window` is true.
const WINDOWS: &[(&str, Values)] = &[("max_window_layers", Any), ("sliding_window", Any)];

/// True if a family can ignore a key with this value.
pub fn is_harmless(family: &str, key: &str, value: &Value) -> bool {
    let is_off = || OFF.iter().any(|(own, off)| *own == key && value.as_bool() == Some(*off));
    let of_family = || {
        let own = OF_FAMILIES.iter().filter(|(name, _)| *name == family).flat_map(|(_, keys)| *keys);
        own.filter(|(own, _)| *own == key).any(|(_, values)| values.have(value))
    };
    HARMLESS.contains(&key)
        || BEGINNINGS.iter().any(|beginning| key.starts_with(beginning))
        || ENDINGS.iter().any(|ending| key.ends_with(ending))
        || is_off()
        || of_family()
}

impl Values {
    fn have(&self, value: &Value) -> bool {
        match self {
            Any => true,
            Text(text) => value.as_str() == Some(text),
            Number(number) => value.as_f64() == Some(*number),
            Flag(flag) => value.as_bool() == Some(*flag),
        }
    }
}
