//! Towers: the part of a model that computes rows of the decoder's width from the patches of a
//! picture.
//!
//! ```text
//! patches ─▶ projection (+ positions) ─▶ layers ─▶ projector ─▶ rows in place of the tokens
//!                                          └─▶ deep projectors ─▶ rows added behind other layers
//! ```

use serde::{Deserialize, Serialize};

use super::{Activation, Layer, Norm, PictureInput, PictureResize, Projection, Tensor};

/// The pictures of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pictures {
    /// The model sees pictures.
    Supported(Box<Tower>),
    /// The model was made for pictures, and this version cannot run that part; the text is the
    /// reason.
    Unsupported(String),
}

/// A tower and its projectors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tower {
    /// Steps from a picture to patches.
    pub input: PictureInput,
    /// Width of the tower's stream.
    pub hidden: u64,
    /// Projections of patches, whose results are added: GGUF files have one for each frame of a
    /// video, and all frames of a picture are the same. Each is `[hidden, numbers of a patch]`;
    /// tensors of more dimensions are read as if those after the first were one.
    pub patches: Vec<Projection>,
    /// Position embedding of patches.
    pub positions: Option<PatchPositions>,
    /// A row before those of patches.
    pub class: Option<ClassRow>,
    /// Norm of the stream before the first layer.
    pub norm: Option<Norm>,
    /// Layers in order. Their mixers are attention, in which each patch sees all others, or those
    /// of its window.
    pub layers: Vec<Layer>,
    /// Windows of patches; `None` if all patches see each other in all layers.
    pub windows: Option<PatchWindows>,
    /// Projector of the stream after the last layer.
    pub projector: Projector,
    /// Projectors of the stream after earlier layers. The rows of the first one are added to the
    /// stream of the decoder behind its first layer, and so on.
    pub deep: Vec<DeepProjector>,
    /// `[hidden of the decoder]`: row at the end of each line. The rows of tiles are joined to
    /// lines of the whole picture then, without its padding, behind the rows of the small copy.
    /// `None` if the rows of each part follow each other.
    pub line_end: Option<Tensor>,
    /// Whether the tokens of a picture see each other, and not only those before them.
    pub is_bidirectional: bool,
    /// Text that stands for pictures.
    pub text: PictureText,
}

/// A row of the stream before those of patches, which the projector does not get.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassRow {
    /// `[hidden]`.
    pub row: Tensor,
    /// `[hidden]`, which is added to it.
    pub position: Tensor,
}

/// Learned positions of patches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum PatchPositions {
    /// A square of rows, resized to the picture's grid by bilinear interpolation.
    Square {
        /// `[side · side, hidden]`.
        table: Tensor,
        /// Number of rows of each side of the square.
        side: u64,
        /// Alignment of the square with the grid of patches.
        fit: SquareFit,
    },
    /// The sum of a row for the column of the patch and one for its line.
    Axes {
        /// `[count, hidden]`.
        columns: Tensor,
        /// `[count, hidden]`.
        lines: Tensor,
        /// Number of rows of each table.
        count: u64,
    },
}

/// Alignment of a square of positions with the grid of a picture's patches, to whose size it is
/// resized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SquareFit {
    /// The first and the last patch of a side take the square's first and last row as they are.
    Corners,
    /// Both cover the same area. If there are fewer patches than rows, a patch takes the rows of
    /// the whole area that it covers ("antialias" in `PyTorch`).
    Area,
}

/// Windows: squares of blocks of patches, from the first row and column of a picture on. In most
/// layers, patches see only those of their window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PatchWindows {
    /// Blocks of each side of a window.
    pub side: u64,
    /// Indexes of the layers in which all patches see each other.
    pub whole: Vec<u64>,
}

/// Projector: normalizes rows, joins the rows of each block of patches to one, and projects it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Projector {
    /// Norm of the rows before they are joined.
    pub norm: Option<Norm>,
    /// How the rows of a block become one.
    pub join: BlockJoin,
    /// Factor of the joined rows.
    pub scale: Option<f64>,
    /// Shift and factors of the elements of the scaled rows.
    pub standard: Option<Standardization>,
    /// Norm of the joined rows.
    pub joined_norm: Option<Norm>,
    /// Projections, one after the other. The last one computes rows of the decoder's width.
    pub layers: Vec<ProjectorLayer>,
}

impl Projector {
    /// Returns the number of elements of the rows that it computes.
    pub fn width(&self) -> u64 {
        self.layers.last().map_or(0, |layer| layer.width)
    }

    /// Returns a projector that neither normalizes nor scales rows.
    pub(crate) fn new(join: BlockJoin, layers: Vec<ProjectorLayer>) -> Self {
        Self { norm: None, join, scale: None, standard: None, joined_norm: None, layers }
    }
}

/// `(x - shift) · factor`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Standardization {
    /// `[width]`.
    pub shift: Tensor,
    /// `[width]`.
    pub factor: Tensor,
}

/// How the rows of a block of patches become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockJoin {
    /// One row after the other.
    Rows,
    /// The first elements of all rows, then the second ones, and so on.
    Elements,
    /// Their mean.
    Mean,
}

/// Layer of a projector: `activation(projection(x))`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProjectorLayer {
    /// Number of elements of the result.
    pub width: u64,
    /// `[width, elements of x]`.
    pub projection: Projection,
    /// Activation of the output of the projection.
    pub activation: Option<Activation>,
}

/// Projector of the stream after a layer of the tower.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeepProjector {
    /// Index of the layer of the tower.
    pub layer: u64,
    /// The projector.
    pub projector: Projector,
}

/// Text that stands for pictures in prompts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PictureText {
    /// Text that a chat template writes where a picture is.
    pub mark: String,
    /// Text for a picture in prompts of templates that do not know pictures; contains the mark
    /// once.
    pub framed: String,
    /// Text that replaces the mark before the tokens of the picture.
    pub before: String,
    /// Text of the token that is repeated for each row of the picture.
    pub token: String,
    /// Text between the tokens of two lines of the picture.
    pub between_lines: String,
    /// Text after the tokens of the picture.
    pub after: String,
    /// Text around the parts of pictures that are cut into tiles.
    #[serde(default)]
    pub tiles: TileText,
}

/// Text around the parts of pictures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TileText {
    /// Text before the tokens of a picture that is not cut.
    pub before_whole: String,
    /// Text before the tokens of a tile. `{row}` and `{column}` stand for its place, counted from
    /// 1.
    pub before: String,
    /// Text after each row of tiles.
    pub after_row: String,
    /// Text before the tokens of the small copy of a picture that is cut.
    pub before_copy: String,
}

impl Tower {
    /// Returns the number of rows of the stream that a projector joins to one.
    pub fn joined(&self) -> u64 {
        self.input.block * self.input.block
    }

    /// Returns the largest number of rows that a picture becomes: those of all its parts, and those
    /// at the ends of lines.
    pub fn most_rows(&self) -> u64 {
        let part = self.input.most_patches() / self.joined().max(1);
        // A tile is a square.
        let lines = match self.input.resize {
            PictureResize::Padded { grids, .. } => {
                let rows = grids.iter().map(|[_, rows]| u64::from(*rows)).max().unwrap_or(0);
                rows.saturating_mul(part.isqrt())
            }
            _ => 0,
        };
        part.saturating_mul(self.input.most_parts()).saturating_add(lines)
    }

    /// Returns the number of elements of the rows that a projector makes of blocks.
    pub fn joined_width(&self, projector: &Projector) -> u64 {
        if projector.join == BlockJoin::Mean { self.hidden } else { self.hidden.saturating_mul(self.joined()) }
    }

    /// Returns all projectors: the last one first.
    pub fn projectors(&self) -> impl Iterator<Item = &Projector> {
        std::iter::once(&self.projector).chain(self.deep.iter().map(|deep| &deep.projector))
    }
}
