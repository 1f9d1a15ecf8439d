package apiserver

import (
	"encoding/binary"
	"hash/crc32"
	"sync"

	"github.com/klauspost/compress/flate"
)

// A gzip stream of a list is concatenated from cached, compressed runs of items. That works because:
//   - a deflate stream is a sequence of blocks, and a flushed compressor ends on a byte boundary;
//   - a reset compressor refers to nothing before its first byte;
//   - the checksum of a concatenation follows from the checksums of both strings and the length of the second.
//
// The runs (see run.go) are long enough for the compressor to use what their items have in common. No compressor is held while the client
// reads.
//
// A compressed run is: checksum, length of the plain text, the operator that shifts a checksum by that length (four bytes each), then
// the blocks.
const compressedHeader = 12

// compressors use level 1, like everything the server compresses.
var compressors = sync.Pool{New: func() any {
	w, err := flate.NewWriter(nil, flate.BestSpeed)
	if err != nil {
		panic(err)
	}
	return &compressor{w: w}
}}

type compressor struct {
	w   *flate.Writer
	out []byte
}

// Write implements io.Writer for the compressor's output.
func (c *compressor) Write(data []byte) (int, error) {
	c.out = append(c.out, data...)
	return len(data), nil
}

// compress compresses a text into blocks that depend on nothing before them, after a header.
func compress(text []byte) ([]byte, error) {
	p := compressors.Get().(*compressor)
	defer compressors.Put(p)
	p.out = append(p.out[:0], make([]byte, compressedHeader)...)
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

var gzipHeader = []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 0xff}

// gzipSender writes a list as a gzip stream of compressed runs.
type gzipSender struct {
	plainSender
	sum checksum
}

func (g *gzipSender) begin(prefix []byte) error {
	compressed, err := compress(prefix)
	if err != nil {
		return err
	}
	if err := g.plainSender.send(gzipHeader); err != nil {
		return err
	}
	return g.send(compressed)
}

func (g *gzipSender) send(compressed []byte) error {
	g.sum.add(compressed)
	return g.plainSender.send(compressed[compressedHeader:])
}

func (g *gzipSender) end(tail []byte) error {
	ending := finalBlock(tail)
	g.sum.addText(tail)
	ending = binary.LittleEndian.AppendUint32(ending, g.sum.crc)
	return g.plainSender.send(binary.LittleEndian.AppendUint32(ending, uint32(g.sum.length)))
}

// finalBlock is the last block of a deflate stream, uncompressed.
func finalBlock(text []byte) []byte {
	block := []byte{1}
	block = binary.LittleEndian.AppendUint16(block, uint16(len(text)))
	block = binary.LittleEndian.AppendUint16(block, ^uint16(len(text)))
	return append(block, text...)
}

// checksum is the CRC-32 and length of a concatenated text.
type checksum struct {
	crc    uint32
	length int
}

// plainLength is the length of the plain text.
func plainLength(compressed []byte) int { return int(binary.LittleEndian.Uint32(compressed[4:])) }

func (c *checksum) add(compressed []byte) {
	crc := binary.LittleEndian.Uint32(compressed)
	operator := binary.LittleEndian.Uint32(compressed[8:])
	c.crc = multiply(operator, c.crc) ^ crc
	c.length += plainLength(compressed)
}

func (c *checksum) addText(text []byte) {
	c.crc = crc32.Update(c.crc, crc32.IEEETable, text)
	c.length += len(text)
}

// A CRC is the remainder of a polynomial over GF(2) divided by a fixed one; appending n bytes to a text multiplies its remainder by
// x^8n. Polynomials have x^0 in their highest bit, as the checksum has.

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

// shiftOperator is x^8n: the factor of a checksum when n bytes follow.
func shiftOperator(n int) uint32 {
	operator := uint32(1) << 31
	for i := 3; n > 0; i, n = i+1, n>>1 {
		if n&1 == 1 {
			operator = multiply(powers[i], operator)
		}
	}
	return operator
}
