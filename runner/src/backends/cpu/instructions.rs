//! Which instructions the machine has.

/// Whether there are AVX2, FMA and F16C. A build for other machines has no use for it.
#[cfg(target_arch = "x86_64")]
pub(super) fn has_avx2() -> bool {
    #[cfg(test)]
    if GENERIC.get() {
        return false;
    }
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

#[cfg(test)]
thread_local!(static GENERIC: std::cell::Cell<bool> = const { std::cell::Cell::new(false) });

/// Does something on this thread as a machine without vectors does it.
#[cfg(test)]
pub(super) fn generically(work: impl FnOnce()) {
    GENERIC.set(true);
    work();
    GENERIC.set(false);
}
