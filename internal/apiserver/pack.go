package apiserver

import (
	"encoding/binary"
	"hash/crc32"
	"sync"

	"github.com/klauspost/compress/flate"
)

// A gzip stream of a list is put together from runs of items that were compressed before. That works because:
//   - a deflate stream is a sequence of blocks, and a compressor that is flushed ends on a byte boundary;
//   - a compressor that starts anew refers to nothing before its first byte;
//   - the checksum of two strings follows from their checksums and the second one's length.
//
// The runs (see run.go) are long enough for their items to profit from one another's text.
//
// The layout of a packed run: checksum, length of the plain text, and the operator that moves a checksum on by that
// length, four bytes each, then the blocks.
const packedHeader = 12

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

// packRun returns a run packed, from memory if it was packed before.
func packRun(list items, r run) ([]byte, error) {
	return remember(list, r, formGzip, func() ([]byte, error) {
		buffer := getBuffer()
		defer putBuffer(buffer)
		var err error
		if *buffer, err = appendRun(*buffer, list, r); err != nil {
			return nil, err
		}
		return pack(*buffer)
	})
}

var gzipHeader = []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 0xff}

// writePacked writes a list as a gzip stream of packed runs.
func (s *Server) writePacked(req *request, mediaType string, head listHead, list items, tail []byte) error {
	packed, err := runsOf(list, formGzip, packRun)
	if err != nil {
		return err
	}
	length := 0
	for _, piece := range packed.pieces {
		length += packedLength(piece)
	}
	opening, err := pack(head(length))
	if err != nil {
		return err
	}
	var sum checksum
	sum.add(opening)
	for _, piece := range packed.pieces {
		sum.add(piece)
	}
	ending := finalBlock(tail)
	sum.addText(tail)
	ending = binary.LittleEndian.AppendUint32(ending, sum.crc)
	ending = binary.LittleEndian.AppendUint32(ending, uint32(sum.length))
	total := len(gzipHeader) + len(opening) - packedHeader + packed.length - packedHeader*len(packed.pieces) + len(ending)

	header := req.w.Header()
	header["Content-Encoding"] = gzipEncoding
	header.Add("Vary", "Accept-Encoding")
	req.writeListHeader(mediaType, total)
	req.w.writeAll(gzipHeader, opening[packedHeader:])
	for _, piece := range packed.pieces {
		req.w.writeAll(piece[packedHeader:])
	}
	req.w.writeAll(ending)
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
