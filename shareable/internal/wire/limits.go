package wire

// Limits of a frame, the same for every peer of this version.
const (
	HeaderSize = 32       // bytes
	MaxFrame   = 64 << 10 // bytes, the header included
	MaxPayload = MaxFrame - HeaderSize
	MaxFDs     = 64       // that travel with a frame
	MaxName    = 256      // bytes of an object's name
	MaxText    = 1024     // bytes of an ERROR or a CLOSING
	MaxMeta    = 32 << 10 // bytes of metadata in an OBJECT
	MaxDtype   = 4 << 10  // bytes of the description of an element's fields
	MaxDims    = 4        // of a row
	MaxChunks  = 65536    // of an object
	MaxEntries = 230      // entries that fit into a LISTED with any names
)

// Limits of what a store keeps and tells.
const (
	MaxNames      = 16             // of an object
	MaxLabels     = 16             // of an object
	MaxLabelKey   = 64             // bytes
	MaxLabelValue = 256            // bytes
	MaxInfos      = 6              // entries that fit into a FOUND with any names and labels
	MaxCounters   = 64             // of a store
	MaxReport     = MaxPayload - 4 // bytes of a REPORTED's text
)
