//! The wrong responses, and the expected outcome of each.

use super::outcome::Expect;
use super::subjects::Subject;

/// A wrong response. Every response is wrong unless the name says how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    ClosedBeforeTheAnswer,
    ClosedOnce,
    ClosedInTheHeaders,
    ClosedInMidBody,
    ClosedInMidBodyOnce,
    LengthTooLong,
    LengthTooShort,
    Endless,
    /// The last bit is wrong.
    WrongBytes,
    /// 100 additional bytes, which the length includes.
    Longer,
    /// Half of the bytes, with a matching length.
    Shorter,
    WrongType,
    Empty,
    NoContent,
    /// 206 in response to a request without a range.
    PartUnasked,
    /// 200 with the whole content in response to a request for a range.
    AllForAPart,
    WrongContentRange,
    NotSatisfiable,
    Unauthorized,
    /// A challenge from a remote registry whose token service is on this machine.
    ChallengeNearer,
    /// The first range succeeds, the next one requires a token.
    ChallengeInMidBlob,
    /// The same, and the token is refused.
    ChallengeForEver,
    Forbidden,
    NotFound,
    /// 429 with a `Retry-After` of a day.
    TooManyForADay,
    ErrorOnce,
    UnavailableOnce,
    Unavailable,
    RedirectLoop,
    RedirectChain,
    RedirectToAFile,
    RedirectToAnotherScheme,
    RedirectNowhere,
    /// A redirect from a remote registry to this machine.
    RedirectNearer,
    RedirectToLocalhost,
    RedirectToANumber,
    RedirectNearerOverTls,
    /// A redirect to another origin that is equally remote and has the content.
    RedirectElsewhere,
    /// One byte per second.
    Drip,
    /// Half of the body, then nothing.
    Silence,
    HugeHeader,
    ManyHeaders,
    NotHttp,
    GarbageForChunks,
    /// 512 MiB of zeros, compressed.
    CompressedBomb,
    Http10,
    /// An HTML page instead of a document.
    Page,
}

use Fault::{
    AllForAPart, ChallengeForEver, ChallengeInMidBlob, ChallengeNearer, ClosedBeforeTheAnswer, ClosedInMidBody,
    ClosedInMidBodyOnce, ClosedInTheHeaders, ClosedOnce, CompressedBomb, Drip, Empty, Endless, ErrorOnce, Forbidden,
    GarbageForChunks, Http10, HugeHeader, LengthTooLong, LengthTooShort, Longer, ManyHeaders, NoContent, NotFound,
    NotHttp, NotSatisfiable, Page, PartUnasked, RedirectChain, RedirectElsewhere, RedirectLoop, RedirectNearer,
    RedirectNearerOverTls, RedirectNowhere, RedirectToAFile, RedirectToANumber, RedirectToAnotherScheme,
    RedirectToLocalhost, Shorter, Silence, TooManyForADay, Unauthorized, Unavailable, UnavailableOnce, WrongBytes,
    WrongContentRange, WrongType,
};

impl Fault {
    pub(super) const ALL: [(Self, &str); 47] = [
        (ClosedBeforeTheAnswer, "closed-before-the-answer"),
        (ClosedOnce, "closed-once"),
        (ClosedInTheHeaders, "closed-in-the-headers"),
        (ClosedInMidBody, "closed-in-mid-body"),
        (ClosedInMidBodyOnce, "closed-in-mid-body-once"),
        (LengthTooLong, "length-too-long"),
        (LengthTooShort, "length-too-short"),
        (Endless, "endless"),
        (WrongBytes, "wrong-bytes"),
        (Longer, "longer"),
        (Shorter, "shorter"),
        (WrongType, "wrong-type"),
        (Empty, "empty"),
        (NoContent, "204"),
        (PartUnasked, "206-unasked"),
        (AllForAPart, "200-for-a-part"),
        (WrongContentRange, "wrong-content-range"),
        (NotSatisfiable, "416"),
        (Unauthorized, "401-without-challenge"),
        (ChallengeNearer, "401-realm-nearer"),
        (ChallengeInMidBlob, "401-in-mid-blob"),
        (ChallengeForEver, "401-in-mid-blob-for-ever"),
        (Forbidden, "403"),
        (NotFound, "404"),
        (TooManyForADay, "429-for-a-day"),
        (ErrorOnce, "500-once"),
        (UnavailableOnce, "503-once"),
        (Unavailable, "503-for-ever"),
        (RedirectLoop, "redirect-loop"),
        (RedirectChain, "redirect-chain-of-30"),
        (RedirectToAFile, "redirect-to-a-file"),
        (RedirectToAnotherScheme, "redirect-to-another-scheme"),
        (RedirectNowhere, "redirect-nowhere"),
        (RedirectNearer, "redirect-nearer"),
        (RedirectToLocalhost, "redirect-to-localhost"),
        (RedirectToANumber, "redirect-to-a-number"),
        (RedirectNearerOverTls, "redirect-nearer-over-tls"),
        (RedirectElsewhere, "redirect-elsewhere"),
        (Drip, "drip"),
        (Silence, "silence-in-mid-body"),
        (HugeHeader, "header-of-1-mb"),
        (ManyHeaders, "10000-headers"),
        (NotHttp, "not-http"),
        (GarbageForChunks, "garbage-for-chunks"),
        (CompressedBomb, "compressed-bomb"),
        (Http10, "http-1.0"),
        (Page, "page"),
    ];

    /// Returns the expected outcome, or `None` if this fault does not apply to the subject.
    pub(super) fn expect(self, subject: Subject) -> Option<Expect> {
        let is_blob = subject.is_blob();
        // The client always requests ranges of these.
        let is_ranged = matches!(subject, Subject::Gguf | Subject::HubFile | Subject::HubWeights);
        match self {
            ClosedOnce | UnavailableOnce | ErrorOnce | WrongType | RedirectElsewhere | Http10 => Some(Expect::Recovers),
            Drip | TooManyForADay => Some(Expect::Outlasts),
            // Content that has a digest or comes from a hub is always requested again. A document
            // may be, but need not.
            ClosedInMidBodyOnce if is_blob || subject.is_hub() => Some(Expect::Recovers),
            ClosedInMidBodyOnce => Some(Expect::Either),
            // Hubs give no digests of small files.
            WrongBytes if subject == Subject::HubFile => Some(Expect::Either),
            // A token service may deviate from the HTTP specification.
            PartUnasked if subject == Subject::Token => Some(Expect::Either),
            PartUnasked => (!is_ranged).then_some(Expect::Refused),
            // The client requested the whole file as one range, or the rest of it after the
            // connection broke.
            AllForAPart if subject == Subject::HubFile || is_blob => Some(Expect::Recovers),
            AllForAPart => is_ranged.then_some(Expect::Refused),
            WrongContentRange => (is_ranged || is_blob).then_some(Expect::Refused),
            ChallengeInMidBlob if is_blob || subject == Subject::Gguf => Some(Expect::Recovers),
            ChallengeInMidBlob => (subject == Subject::HubWeights).then_some(Expect::Refused),
            ChallengeForEver => (is_blob || subject == Subject::Gguf).then_some(Expect::Refused),
            // A hub may be silent for half a minute, and no setting shortens that.
            Silence => (!subject.is_hub()).then_some(Expect::Refused),
            Page => {
                let is_read = subject.is_document() || matches!(subject, Subject::HubListing | Subject::Token);
                is_read.then_some(Expect::Refused)
            }
            _ => Some(Expect::Refused),
        }
    }

    /// Whether the fault needs a registry that is not on this machine.
    pub(super) fn is_from_afar(self) -> bool {
        let nearer = [ChallengeNearer, RedirectNearer, RedirectToLocalhost, RedirectToANumber, RedirectNearerOverTls];
        nearer.contains(&self)
    }

    /// Whether the whole response arrives at once, and the client retries without waiting.
    pub(super) fn is_quick(self, subject: Subject) -> bool {
        let asked_again = subject.is_blob() || subject.is_hub();
        match self {
            ClosedBeforeTheAnswer
            | ClosedInTheHeaders
            | HugeHeader
            | ManyHeaders
            | NotHttp
            | Unavailable
            | Drip
            | TooManyForADay => false,
            ClosedInMidBody | GarbageForChunks | Silence => !asked_again,
            LengthTooLong | LengthTooShort | Shorter => !subject.is_hub(),
            _ => true,
        }
    }
}
