//! Compiles the kernels in builds for NVIDIA GPUs, and writes the tables that kernels share with
//! the codecs.

use std::env;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use formats::codec::grid::{IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS};

/// Compute capability of the PTX. Drivers compile it for this generation and later ones.
const PTX: &str = "80";
/// Compute capabilities with machine code in the binary.
const CUBINS: [&str; 2] = ["80", "90"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=cuda");
    for name in ["CUDA_COMPUTE_CAP", "NVCC", "CUDA_HOME", "NVCC_APPEND_FLAGS"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo says where"));
    std::fs::write(out.join("tables.cuh"), tables()).expect("the folder for what a build makes");
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return;
    }
    compile(&out);
    // candle's kernels are compiled for it. Without the variable, candle uses the GPU of this
    // machine.
    let said = env::var("CUDA_COMPUTE_CAP").unwrap_or_default();
    let digits: String = said.chars().take_while(char::is_ascii_digit).collect();
    let least: u32 = PTX.parse().expect("a number");
    let capability = digits.parse().unwrap_or(least).max(least);
    println!("cargo::rustc-env=LODE_CUDA_COMPUTE_CAP={capability}");
}

/// Compiles all kernels into one file, `kernels.fatbin`.
fn compile(out: &Path) {
    let home = env::var_os("CUDA_HOME").map(|home| PathBuf::from(home).join("bin/nvcc"));
    let nvcc = env::var_os("NVCC").map(PathBuf::from).or(home).unwrap_or_else(|| "nvcc".into());
    let mut command = Command::new(&nvcc);
    command.args(["-std=c++17", "-O3", "--fatbin", "-diag-suppress=128"]);
    command.arg(format!("-gencode=arch=compute_{PTX},code=compute_{PTX}"));
    for cubin in CUBINS {
        command.arg(format!("-gencode=arch=compute_{cubin},code=sm_{cubin}"));
    }
    command.arg("-I").arg(out).arg("-o").arg(out.join("kernels.fatbin")).arg("cuda/kernels.cu");
    let remedy = "the feature `cuda` needs CUDA's compiler: eval \"$(scripts/cuda-toolkit)\" brings one";
    let status =
        command.status().unwrap_or_else(|error| panic!("`{}` cannot be run: {error}; {remedy}", nvcc.display()));
    assert!(status.success(), "`{}` failed: {status}; {remedy}", nvcc.display());
}

/// Returns the grids of `IQ1`, `IQ2` and `IQ3` as C arrays of bytes.
fn tables() -> String {
    let mut text = "// The points of grids, made from those of the codecs.\n#pragma once\n".to_owned();
    let mut add = |name: &str, bytes: Vec<u8>| {
        let _ = write!(text, "alignas(8) TABLE uint8_t TABLE_{name}[{}] = {{", bytes.len());
        for byte in bytes {
            let _ = write!(text, "{byte},");
        }
        text.push_str("};\n");
    };
    add("IQ2_XXS", IQ2_XXS.concat());
    add("IQ2_XS", IQ2_XS.concat());
    add("IQ2_S", IQ2_S.concat());
    add("IQ3_XXS", IQ3_XXS.concat());
    add("IQ3_S", IQ3_S.concat());
    add("IQ1_S", IQ1_S.concat());
    text
}
