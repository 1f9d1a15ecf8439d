package hostnet

import (
	"errors"
	"testing"

	socket "github.com/mdlayher/netlink"
	"github.com/mdlayher/netlink/nltest"
	"github.com/vishvananda/netlink"
)

// A list that the kernel has changed while it was read is read again.
func TestMessagesOfAChangedTable(t *testing.T) {
	for name, test := range map[string]struct {
		interrupted, requests int
		want                  error
	}{
		"complete":         {0, 1, nil},
		"interrupted":      {3, 4, nil},
		"changes for ever": {1000, dumpTries, netlink.ErrDumpInterrupted},
	} {
		t.Run(name, func(t *testing.T) {
			requests := 0
			connection := nltest.Dial(func(sent []socket.Message) ([]socket.Message, error) {
				if len(sent) == 0 { // the rest of a response
					return nil, nil
				}
				requests++
				response := socket.Message{Header: socket.Header{Sequence: sent[0].Header.Sequence, PID: sent[0].Header.PID}, Data: []byte{1, 2, 3, 4}}
				if requests <= test.interrupted {
					response.Header.Flags |= socket.DumpInterrupted
				}
				return []socket.Message{response}, nil
			})
			defer connection.Close()
			got, err := Messages(connection, socket.Message{Header: socket.Header{Flags: socket.Request | socket.Dump}})
			if !errors.Is(err, test.want) || len(got) != 1 || requests != test.requests {
				t.Errorf("%d messages after %d requests, %v", len(got), requests, err)
			}
		})
	}
}
