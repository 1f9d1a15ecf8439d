package http2

import (
	"encoding/binary"

	"golang.org/x/net/http2"
)

const frameHeaderSize = 9

func appendFrameHeader(b []byte, length int, kind http2.FrameType, flags http2.Flags, id uint32) []byte {
	b = append(b, byte(length>>16), byte(length>>8), byte(length), byte(kind), byte(flags))
	return binary.BigEndian.AppendUint32(b, id)
}

func appendSettings(b []byte, settings ...http2.Setting) []byte {
	b = appendFrameHeader(b, 6*len(settings), http2.FrameSettings, 0, 0)
	for _, s := range settings {
		b = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(b, uint16(s.ID)), s.Val)
	}
	return b
}

func appendWindowUpdate(b []byte, id, increment uint32) []byte {
	return binary.BigEndian.AppendUint32(appendFrameHeader(b, 4, http2.FrameWindowUpdate, 0, id), increment)
}

func appendPing(b []byte, ack bool, data [8]byte) []byte {
	var flags http2.Flags
	if ack {
		flags = http2.FlagPingAck
	}
	return append(appendFrameHeader(b, 8, http2.FramePing, flags, 0), data[:]...)
}

func appendReset(b []byte, id uint32, code http2.ErrCode) []byte {
	return binary.BigEndian.AppendUint32(appendFrameHeader(b, 4, http2.FrameRSTStream, 0, id), uint32(code))
}

func appendGoAway(b []byte, last uint32, code http2.ErrCode) []byte {
	b = binary.BigEndian.AppendUint32(appendFrameHeader(b, 8, http2.FrameGoAway, 0, 0), last)
	return binary.BigEndian.AppendUint32(b, uint32(code))
}

func appendData(b []byte, id uint32, data []byte, end bool) []byte {
	var flags http2.Flags
	if end {
		flags = http2.FlagDataEndStream
	}
	return append(appendFrameHeader(b, len(data), http2.FrameData, flags, id), data...)
}

// appendHeaders appends compressed headers: a HEADERS frame and as many CONTINUATION frames as needed.
func appendHeaders(b []byte, id uint32, block []byte, end bool) []byte {
	kind, flags := http2.FrameHeaders, http2.Flags(0)
	if end {
		flags = http2.FlagHeadersEndStream
	}
	for {
		part := block[:min(len(block), payload)]
		if block = block[len(part):]; len(block) == 0 {
			flags |= http2.FlagHeadersEndHeaders
		}
		b = append(appendFrameHeader(b, len(part), kind, flags, id), part...)
		if len(block) == 0 {
			return b
		}
		kind, flags = http2.FrameContinuation, 0
	}
}
