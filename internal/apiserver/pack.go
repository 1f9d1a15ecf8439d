package apiserver

import (
	"encoding/binary"
	"hash/crc32"
	"hash/maphash"
	"math/bits"
	"strconv"
	"sync"

	"github.com/klauspost/compress/flate"

	"skiff/internal/store/cache"
)

// A gzip stream of a list is put together from runs of items that were compressed before. That works because:
//   - a deflate stream is a sequence of blocks, and a compressor that is flushed ends on a byte boundary;
//   - a compressor that starts anew refers to nothing before its first byte;
//   - the checksum of two strings follows from their checksums and the second one's length.
//
// A run is some thirty items that follow one another, enough for them to profit from one another's text. Where runs end
// is decided by the items' keys alone, so that a change makes one run new and leaves the others as they were. A packed
// run is kept with its first entry, under a name made from the revisions of all its entries.
//
// The layout of a packed run: checksum, length of the plain text, and the operator that moves a checksum on by that
// length, four bytes each, then the blocks.
const packedHeader = 12

// A run ends before a key whose hash ends in runBits zeros, and in any case at runEntries or runBytes of stored bytes.
const (
	runBits    = 5
	runEntries = 128
	runBytes   = 512 << 10
)

// runSeed keeps clients from choosing keys and revisions that make two runs look the same.
var runSeed = maphash.MakeSeed()

// run is a part of a list: the entries from start to end.
type run struct {
	start, end int
	signature  uint64 // of keys and revisions
}

// nextRun finds the run that begins at an entry.
func nextRun(entries []*cache.Entry, start int) run {
	r := run{start: start, signature: 0x9e3779b97f4a7c15}
	stored := 0
	for i := start; i < len(entries); i++ {
		key := maphash.String(runSeed, entries[i].Key())
		if i > start && (key&(1<<runBits-1) == 0 || i-start == runEntries || stored >= runBytes) {
			r.end = i
			return r
		}
		high, low := bits.Mul64(r.signature^uint64(entries[i].Revision()), key|1)
		r.signature = high ^ low
		stored += len(entries[i].Stored())
	}
	r.end = len(entries)
	return r
}

// packers compress at level 1, like everything the server compresses.
var packers = sync.Pool{New: func() any {
	w, err := flate.NewWriter(nil, flate.BestSpeed)
	if err != nil {
		panic(err)
	}
	return &packer{w: w}
}}

type packer struct {
	w   *flate.Writer
	out []byte
}

// Write implements io.Writer for the compressor's output.
func (p *packer) Write(data []byte) (int, error) {
	p.out = append(p.out, data...)
	return len(data), nil
}

// pack compresses a text into blocks that depend on nothing before them, behind its header.
func pack(text []byte) ([]byte, error) {
	p := packers.Get().(*packer)
	defer packers.Put(p)
	p.out = append(p.out[:0], make([]byte, packedHeader)...)
	p.w.Reset(p)
	if _, err := p.w.Write(text); err != nil {
		return nil, err
	}
	if err := p.w.Flush(); err != nil {
		return nil, err
	}
	binary.LittleEndian.PutUint32(p.out, crc32.ChecksumIEEE(text))
	binary.LittleEndian.PutUint32(p.out[4:], uint32(len(text)))
	binary.LittleEndian.PutUint32(p.out[8:], shiftOperator(len(text)))
	return append([]byte(nil), p.out...), nil
}

// packRun returns a run packed, from memory if it was packed before. The first run of a list is another than the same
// run elsewhere: its first item has no comma before it. Selections are not remembered, there are too many of them.
func packRun(list items, r run) ([]byte, error) {
	make := func(*cache.Entry) ([]byte, error) {
		buffer := getBuffer()
		defer putBuffer(buffer)
		var err error
		for i := r.start; i < r.end; i++ {
			if *buffer, err = list.append(*buffer, i); err != nil {
				return nil, err
			}
		}
		return pack(*buffer)
	}
	first := list.of().entries[r.start]
	if list.of().selected {
		return make(first)
	}
	id := list.packing()
	id.Format += strconv.FormatUint(r.signature, 36)
	if r.start == 0 {
		id.Format += " first"
	}
	return first.Encoding(id, make)
}

var gzipHeader = []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 0xff}

// writePacked writes a list as a gzip stream of packed runs.
func (s *Server) writePacked(req *request, mediaType string, head listHead, list items, tail []byte) error {
	entries := list.of().entries
	runs := make([][]byte, 1, 2+len(entries)>>runBits) // the first is the head's
	length := 0
	for start := 0; start < len(entries); {
		r := nextRun(entries, start)
		packed, err := packRun(list, r)
		if err != nil {
			return err
		}
		runs = append(runs, packed)
		length += packedLength(packed)
		start = r.end
	}
	var err error
	if runs[0], err = pack(head(length)); err != nil {
		return err
	}
	total := len(gzipHeader)
	var sum checksum
	for _, run := range runs {
		total += len(run) - packedHeader
		sum.add(run)
	}
	ending := finalBlock(tail)
	sum.addText(tail)
	ending = binary.LittleEndian.AppendUint32(ending, sum.crc)
	ending = binary.LittleEndian.AppendUint32(ending, uint32(sum.length))
	total += len(ending)

	header := req.w.Header()
	header["Content-Encoding"] = gzipEncoding
	header.Add("Vary", "Accept-Encoding")
	req.writeListHeader(mediaType, total)
	buffer := getBuffer()
	defer putBuffer(buffer)
	chunk := append(*buffer, gzipHeader...)
	defer func() { *buffer = chunk }()
	for _, run := range runs {
		chunk = append(chunk, run[packedHeader:]...)
		if chunk, err = req.w.writeWholeFrames(chunk); err != nil {
			return nil // the client is gone
		}
	}
	chunk = append(chunk, ending...)
	_ = req.w.writeFrames(chunk)
	return nil
}

// finalBlock is the last block of a deflate stream, uncompressed.
func finalBlock(text []byte) []byte {
	block := []byte{1}
	block = binary.LittleEndian.AppendUint16(block, uint16(len(text)))
	block = binary.LittleEndian.AppendUint16(block, ^uint16(len(text)))
	return append(block, text...)
}

// checksum is the CRC-32 and length of a text put together from pieces.
type checksum struct {
	crc    uint32
	length int
}

// packedLength is the length of the plain text.
func packedLength(packed []byte) int { return int(binary.LittleEndian.Uint32(packed[4:])) }

func (c *checksum) add(packed []byte) {
	crc := binary.LittleEndian.Uint32(packed)
	operator := binary.LittleEndian.Uint32(packed[8:])
	c.crc = multiply(operator, c.crc) ^ crc
	c.length += packedLength(packed)
}

func (c *checksum) addText(text []byte) {
	c.crc = crc32.Update(c.crc, crc32.IEEETable, text)
	c.length += len(text)
}

// A CRC is the remainder of a polynomial over GF(2) divided by a fixed one; to append n bytes to a text is to multiply its
// remainder by x^8n. Polynomials are written with their highest bit for x^0, as the checksum itself is.

// multiply multiplies two polynomials modulo the checksum's.
func multiply(a, b uint32) uint32 {
	var product uint32
	for ; a != 0; a <<= 1 {
		// Branches on random bits would be mispredicted half the time.
		product ^= b & -(a >> 31)
		b = b>>1 ^ crc32.IEEE&-(b&1)
	}
	return product
}

// powers[i] is x to the power of 2^i.
var powers = func() (p [64]uint32) {
	p[0] = 1 << 30
	for i := 1; i < len(p); i++ {
		p[i] = multiply(p[i-1], p[i-1])
	}
	return p
}()

// shiftOperator is x^8n: what a checksum is multiplied by when n bytes follow.
func shiftOperator(n int) uint32 {
	operator := uint32(1) << 31
	for i := 3; n > 0; i, n = i+1, n>>1 {
		if n&1 == 1 {
			operator = multiply(powers[i], operator)
		}
	}
	return operator
}
