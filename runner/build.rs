//! What the feature `cuda` needs to know of its build.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=CUDA_COMPUTE_CAP");
    if std::env::var_os("CARGO_FEATURE_CUDA").is_some() {
        // candle's kernels are compiled for it; without the variable candle asks the GPU of this machine.
        let capability = std::env::var("CUDA_COMPUTE_CAP").unwrap_or_else(|_| "80".to_owned());
        println!("cargo::rustc-env=LODE_CUDA_COMPUTE_CAP={capability}");
    }
}
