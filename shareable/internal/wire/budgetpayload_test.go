package wire

import "pgregory.net/rapid"

// budgetKinds are the types of a budget's members.
var budgetKinds = []kind{
	{
		of: TypeJoin, decode: decoding(DecodeJoin),
		full: Join{UUID: [16]byte{1, 2}, Token: [16]byte{3, 15: 4}, Lease: 1 << 33, Created: 1 << 32, Least: 1 << 30, Most: 1 << 34, Name: "worker-a"},
		any: drawing(func(t *rapid.T) Join {
			return Join{[16]byte{rapid.Byte().Draw(t, "uuid")}, [16]byte{rapid.ByteMin(1).Draw(t, "token")}, anyU64(t), anyU64(t), anyU64(t), anyU64(t), anyName(t)}
		}),
	}, {
		of: TypeAsk, decode: decoding(DecodeAsk), full: Ask{Number: 7, Urgent: true, Need: 1 << 32, Want: 1 << 33, Created: 1 << 31},
		any: drawing(func(t *rapid.T) Ask {
			need := anyU64(t)
			return Ask{rapid.Uint32Min(1).Draw(t, "number"), rapid.Bool().Draw(t, "urgent"), need, rapid.Uint64Min(need).Draw(t, "want"), anyU64(t)}
		}),
	}, {
		of: TypeGave, decode: decoding(DecodeGave), full: Gave{Number: 9, Given: 1 << 32, Created: 1 << 33, Why: "it asks itself"},
		any: drawing(func(t *rapid.T) Gave {
			return Gave{rapid.Uint32().Draw(t, "number"), anyU64(t), anyU64(t), rapid.StringN(0, 100, 400).Draw(t, "why")}
		}),
	}, {
		of: TypeTerms, decode: decoding(DecodeTerms), full: Terms{UUID: [16]byte{1}, Flags: TermsLeast | TermsMost, Least: 1 << 30, Most: 1 << 31, Member: "worker-a"},
		any: drawing(func(t *rapid.T) Terms {
			return Terms{[16]byte{rapid.Byte().Draw(t, "uuid")}, from(t, TermsLeast, TermsLeast|TermsMost|TermsBudget), anyU64(t), anyU64(t), anyU64(t), anyOptionalName(t)}
		}),
	}, {
		of: TypeLent, decode: decoding(DecodeLent), full: Lent{Number: 7, Code: CodeOutOfMemory, More: 1 << 30, Least: 1 << 30, Most: 1 << 34, Text: "worker-b gave 0 bytes"},
		any: drawing(func(t *rapid.T) Lent {
			return Lent{rapid.Uint32().Draw(t, "number"), rapid.Uint32().Draw(t, "code"), anyU64(t), anyU64(t), anyU64(t), rapid.StringN(0, 100, 400).Draw(t, "text")}
		}),
	}, {
		of: TypeDemand, decode: decoding(DecodeDemand), full: Demand{Number: 9, Soft: true, Within: 5000, Lease: 1 << 32},
		any: drawing(func(t *rapid.T) Demand {
			return Demand{rapid.Uint32().Draw(t, "number"), rapid.Bool().Draw(t, "soft"), rapid.Uint32().Draw(t, "time"), anyU64(t)}
		}),
	},
}
