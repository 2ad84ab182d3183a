//! Parameters that PEFT adapts although they are not modules: the experts of transformers 5,
//! `experts.gate_up_proj` and `experts.down_proj`, are two parameters of one module.
//!
//! Names in files contain only the module. If several parameters of a module are adapted, PEFT
//! wraps the module once per parameter, in the order of the parameters. `experts.lora_A` belongs to
//! the last parameter, `experts.base_layer.lora_A` to the one before it.

/// Name suffix of a wrapped module, once for each further wrapper.
const WRAPPED: &str = ".base_layer";
/// Parameters of one module, in the order in which transformers defines them.
const ORDER: [&str; 2] = ["gate_up_proj", "down_proj"];

/// Returns the canonical name of the parameter to which a module's factors belong, without
/// `.weight`; `None` if they belong to the module itself. `targets` are the endings of the names of
/// all adapted parameters.
///
/// # Errors
/// The factors cannot be assigned to one parameter.
pub(super) fn name(module: &str, targets: &[String]) -> Result<Option<String>, String> {
    let mut own = module;
    let mut wrapped = 0;
    while let Some(inner) = own.strip_suffix(WRAPPED) {
        (own, wrapped) = (inner, wrapped + 1);
    }
    let mut parameters: Vec<&str> = targets.iter().filter_map(|target| parameter_of(own, target)).collect();
    parameters.sort_unstable();
    parameters.dedup();
    if parameters.is_empty() {
        return match wrapped {
            0 => Ok(None),
            _ => Err("belongs to a parameter that `target_parameters` does not list".to_owned()),
        };
    }
    if parameters.len() > 1 {
        if let Some(other) = parameters.iter().find(|own| !ORDER.contains(own)) {
            return Err(format!(
                "belongs to one of the parameters {parameters:?}; the order of `{other}` among them is unknown"
            ));
        }
        parameters.sort_unstable_by_key(|own| ORDER.iter().position(|known| known == own));
    }
    let place = parameters.len().checked_sub(wrapped + 1);
    let place =
        place.ok_or_else(|| format!("is wrapped {wrapped} times, for which `target_parameters` names too few"))?;
    let name = format!("{own}.{}", parameters[place]);
    Ok(Some(name.strip_suffix(".weight").map(str::to_owned).unwrap_or(name)))
}

/// Returns the parameter of a module that a target names. A target without a module means a
/// parameter of experts, because no other modules with such parameters are known.
fn parameter_of<'t>(module: &str, target: &'t str) -> Option<&'t str> {
    let (parent, parameter) = target.rsplit_once('.').unwrap_or(("experts", target));
    let rest = module.strip_suffix(parent)?;
    (rest.is_empty() || rest.ends_with('.')).then_some(parameter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outermost_factors_are_of_the_last_parameter() {
        let all = ["mlp.experts.down_proj", "mlp.experts.gate_up_proj"].map(str::to_owned);
        let module = "model.layers.0.mlp.experts";
        let own = |parameter: &str| Ok(Some(format!("{module}.{parameter}")));
        assert_eq!(name(module, &all), own("down_proj"));
        assert_eq!(name(&format!("{module}.base_layer"), &all), own("gate_up_proj"));
        assert_eq!(name(module, &all[1..]), own("gate_up_proj"));
        assert_eq!(name(module, &["down_proj".to_owned()]), own("down_proj"));
        assert_eq!(name("model.layers.0.self_attn.q_proj", &["down_proj".to_owned()]), Ok(None));
        assert_eq!(name("model.layers.0.self_attn.q_proj", &all), Ok(None));
        assert_eq!(name("model.layers.0.mlp.more_experts", &["experts.down_proj".to_owned()]), Ok(None));
        let weight = ["input_linear.weight".to_owned()];
        assert_eq!(name("x.input_linear", &weight), Ok(Some("x.input_linear".to_owned())));
        for (module, targets) in [
            (format!("{module}.base_layer.base_layer"), &all[..]),
            (format!("{module}.base_layer"), &all[1..]),
            (format!("{module}.base_layer"), &[]),
        ] {
            assert!(name(&module, targets).is_err(), "{module}");
        }
        let unknown = ["experts.gate_up_proj", "experts.other"].map(str::to_owned);
        assert!(name(module, &unknown).expect_err("an unknown order").contains("`other`"));
    }
}
