//! Every tensor type of GGUF decodes to the values of the reference implementations, bit for bit.

use formats::weight::Arrays;
use formats::{Encoding, Gguf, Weight};

use crate::support::{fixtures, json, list, object, read};

/// The length of the header of a `.npy` file in format 1.0; float32 values follow.
const NPY_HEADER: usize = 128;

#[test]
fn decodes_every_tensor_type() {
    let Some(folder) = fixtures("ggml_types::decodes_every_tensor_type", "gguf/types") else { return };
    let manifest = json(&folder.join("manifest.json"));
    let types = object(&manifest["types"]);
    assert_eq!(types.len(), 34, "every type but Q8_1, of which no model has tensors");
    for kind in types.keys() {
        let file = read(&folder.join(format!("{kind}.gguf")));
        let gguf = Gguf::parse(&file).unwrap_or_else(|e| panic!("{kind}: {e}"));
        let tensor = &gguf.tensors[0];
        let begin = (gguf.data_start + tensor.offset) as usize;
        let data = &file[begin..begin + tensor.size as usize];
        let arrays = Arrays { data, ..Arrays::default() };
        let weight = Weight::new(Encoding::Blocks(tensor.kind), &tensor.shape(), arrays)
            .unwrap_or_else(|e| panic!("{kind}: {e}"));
        assert_eq!(weight.rows() as u64, list(&manifest["shape_rows_by_columns"])[0].as_u64().expect("rows"));

        let mut decoded = vec![0.0; weight.rows() * weight.columns()];
        weight.decode(&mut decoded);
        let golden = read(&folder.join(format!("{kind}.npy")));
        let (golden, rest) = golden[NPY_HEADER..].as_chunks();
        assert!(golden.len() == decoded.len() && rest.is_empty(), "{kind}: {} golden numbers", golden.len());
        for (i, (found, golden)) in decoded.iter().zip(golden).enumerate() {
            let golden = f32::from_le_bytes(*golden);
            assert_eq!(found.to_bits(), golden.to_bits(), "{kind}, element {i}: {found} instead of {golden}");
        }
    }
}
