//! Windows of attention, and the `RoPE` that depends on them.

use super::Dense;
use crate::config_json::{self, Config};
use crate::gguf_keys::{Keys, all_but_every};
use crate::{Error, Rope};

impl Dense {
    /// Sets the windows of the sliding layers.
    pub(crate) fn slide(&mut self, slides: &[bool], window: u64) {
        for (layer, slides) in self.layers.iter_mut().zip(slides) {
            layer.window = slides.then_some(window);
        }
    }

    /// Sets the window for all layers, if the config has one.
    pub(crate) fn slide_all(&mut self, config: Config<'_>, default: Option<u64>) -> Result<(), Error> {
        let default = default.filter(|_| !config.is_null("sliding_window"));
        match config.unsigned("sliding_window")?.or(default) {
            Some(0) => Err(config_json::fail("`sliding_window` is 0, expected a number of tokens or null")),
            Some(window) => {
                self.slide(&vec![true; self.layers.len()], window);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Sets the window of the layers that a config lists as sliding; without a list, of all but
    /// every `step`-th layer.
    pub(crate) fn slide_by_config(&mut self, config: Config<'_>, step: u64, default: u64) -> Result<(), Error> {
        let layers = self.layers.len() as u64;
        let slides = config.sliding_layers(layers)?.unwrap_or_else(|| all_but_every(step, layers));
        self.slide(&slides, config.unsigned("sliding_window")?.unwrap_or(default));
        Ok(())
    }

    /// Sets the window of the layers that a file's keys name; without such keys, of all but every
    /// `step`-th layer. A window of 0 means none.
    pub(crate) fn slide_by_keys(&mut self, keys: Keys<'_>, step: u64, default: u64) -> Result<(), Error> {
        let layers = self.layers.len();
        let slides = keys.sliding_layers(layers as u64)?.unwrap_or_else(|| all_but_every(step, layers as u64));
        match keys.unsigned("attention.sliding_window")?.unwrap_or(default) {
            0 => self.slide(&vec![false; layers], 0),
            window => self.slide(&slides, window),
        }
        Ok(())
    }

    /// Removes `RoPE` from layers without a window.
    pub(crate) fn rotate_sliding_layers_only(&mut self) {
        for layer in self.layers.iter_mut().filter(|layer| layer.window.is_none()) {
            layer.rope = None;
        }
    }

    /// Removes `RoPE` from the layers for which `rotates` is false.
    pub(crate) fn rotate_only(&mut self, rotates: &[bool]) {
        for (layer, rotates) in self.layers.iter_mut().zip(rotates) {
            layer.rope = layer.rope.take().filter(|_| *rotates);
        }
    }

    /// Sets the `RoPE` of layers without a window, and that of the others.
    pub(crate) fn set_ropes(&mut self, full: &Rope, sliding: &Rope) {
        for layer in &mut self.layers {
            layer.rope = Some(full.clone());
        }
        self.set_sliding_rope(sliding);
    }

    /// Sets the `RoPE` of layers with a window.
    pub(crate) fn set_sliding_rope(&mut self, rope: &Rope) {
        for layer in self.layers.iter_mut().filter(|layer| layer.window.is_some()) {
            layer.rope = Some(rope.clone());
        }
    }
}
