//! Parameters that PEFT adapts without a module of their own: the experts of transformers 5, `experts.gate_up_proj` and
//! `experts.down_proj`, are two parameters of one module.
//!
//! Names in files have the module alone. Where several of its parameters are adapted, each is wrapped around the one before, in the
//! order in which the module has them: `experts.lora_A` is of the last, `experts.base_layer.lora_A` of the one before it.

/// What the module of a parameter that is wrapped again is called.
const WRAPPED: &str = ".base_layer";
/// Parameters of one module, in the order in which modules of transformers have them.
const ORDER: [&str; 2] = ["gate_up_proj", "down_proj"];

/// The canonical name of the parameter that a module's factors are of, without `.weight`; `None` where they are the module's own.
/// `targets` are the ends of the names of all adapted parameters.
///
/// # Errors
/// Which of them is meant is not known.
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
            _ => Err("is of a parameter that `target_parameters` does not name".to_owned()),
        };
    }
    if parameters.len() > 1 {
        if let Some(other) = parameters.iter().find(|own| !ORDER.contains(own)) {
            return Err(format!(
                "is of one of the parameters {parameters:?}; the place of `{other}` among them is not known"
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

/// The parameter of a module that a target names. One without its module is an experts': other modules with such a parameter are not
/// known.
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
