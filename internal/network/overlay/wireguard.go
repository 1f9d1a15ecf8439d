package overlay

import (
	"crypto/ecdh"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/mdlayher/netlink"
	vnetlink "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"skiff/internal/atomicfile"
	"skiff/internal/network/hostnet"
)

// ReadPrivateKey reads the WireGuard key in a file, or makes one.
func ReadPrivateKey(path string) (private, public Key, err error) {
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		private, err = newPrivateKey(path)
	case err == nil:
		private, err = ParseKey(string(text))
		if err != nil {
			err = errors.New("its content is not a WireGuard key") // the error would contain it
		}
	}
	if err != nil {
		return private, public, fmt.Errorf("read the WireGuard key %s: %w", path, err)
	}
	key, err := ecdh.X25519().NewPrivateKey(private[:])
	if err != nil {
		return private, public, fmt.Errorf("read the WireGuard key %s: %w", path, err)
	}
	return private, Key(key.PublicKey().Bytes()), nil
}

func newPrivateKey(path string) (Key, error) {
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return Key{}, err
	}
	private := Key(key.Bytes())
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return Key{}, err
	}
	return private, atomicfile.Write(path, []byte(private.String()), 0o600)
}

// The kernel's interface to WireGuard: linux/wireguard.h.
const (
	commandGetDevice, commandSetDevice = 0, 1

	deviceIndex, devicePrivateKey, devicePublicKey, deviceListenPort, devicePeers = 1, 3, 4, 6, 8

	peerPublicKey, peerFlags, peerEndpoint, peerAllowedIPs = 1, 3, 4, 9

	peerFlagRemove, peerFlagReplaceAllowedIPs = 1 << 0, 1 << 1

	allowedFamily, allowedAddress, allowedMask = 1, 2, 3

	// maxPeersPerMessage bounds the size of a message, whose attributes have a length of 16 bits.
	maxPeersPerMessage = 100
)

// device is what is read of a WireGuard link.
type device struct {
	publicKey Key
	port      uint16
	peers     map[Key]Peer
}

// execute sends a message about WireGuard and returns the attributes of the responses.
func execute(command byte, flags netlink.HeaderFlags, attributes []byte) ([][]byte, error) {
	family, err := vnetlink.GenlFamilyGet("wireguard")
	if err != nil {
		return nil, fmt.Errorf("the kernel has no WireGuard: %w", err)
	}
	connection, err := netlink.Dial(unix.NETLINK_GENERIC, nil)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	responses, err := hostnet.Messages(connection, netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(family.ID), Flags: netlink.Request | flags},
		Data:   append([]byte{command, 1, 0, 0}, attributes...),
	})
	if err != nil {
		return nil, err
	}
	var all [][]byte
	for _, r := range responses {
		if len(r.Data) > 4 {
			all = append(all, r.Data[4:])
		}
	}
	return all, nil
}

// writeDevice sets the key and the port of a link.
func writeDevice(index int, private Key, port uint16) error {
	e := netlink.NewAttributeEncoder()
	e.Uint32(deviceIndex, uint32(index))
	e.Bytes(devicePrivateKey, private[:])
	e.Uint16(deviceListenPort, port)
	attributes, err := e.Encode()
	if err != nil {
		return err
	}
	_, err = execute(commandSetDevice, netlink.Acknowledge, attributes)
	return err
}

// writePeers adds, changes and removes peers of a link.
func writePeers(index int, set, removed map[Key]Peer) error {
	type entry struct {
		key    Key
		peer   Peer
		remove bool
	}
	var all []entry
	for key := range removed {
		all = append(all, entry{key: key, remove: true})
	}
	for key, peer := range set {
		all = append(all, entry{key: key, peer: peer})
	}
	for batch := range slices.Chunk(all, maxPeersPerMessage) {
		e := netlink.NewAttributeEncoder()
		e.Uint32(deviceIndex, uint32(index))
		e.Nested(devicePeers, func(list *netlink.AttributeEncoder) error {
			for i, p := range batch {
				list.Nested(uint16(i), func(e *netlink.AttributeEncoder) error { return encodePeer(e, p.key, p.peer, p.remove) })
			}
			return nil
		})
		attributes, err := e.Encode()
		if err != nil {
			return err
		}
		if _, err := execute(commandSetDevice, netlink.Acknowledge, attributes); err != nil {
			return err
		}
	}
	return nil
}

func encodePeer(e *netlink.AttributeEncoder, key Key, p Peer, remove bool) error {
	e.Bytes(peerPublicKey, key[:])
	if remove {
		e.Uint32(peerFlags, peerFlagRemove)
		return nil
	}
	e.Uint32(peerFlags, peerFlagReplaceAllowedIPs)
	e.Bytes(peerEndpoint, encodeEndpoint(p.Endpoint))
	e.Nested(peerAllowedIPs, func(list *netlink.AttributeEncoder) error {
		for i, allowed := range p.AllowedIPs {
			list.Nested(uint16(i), func(e *netlink.AttributeEncoder) error {
				e.Uint16(allowedFamily, addressFamily(allowed.Addr()))
				e.Bytes(allowedAddress, allowed.Addr().AsSlice())
				e.Uint8(allowedMask, uint8(allowed.Bits()))
				return nil
			})
		}
		return nil
	})
	return nil
}

func addressFamily(a netip.Addr) uint16 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// encodeEndpoint is a struct sockaddr_in or sockaddr_in6.
func encodeEndpoint(a netip.AddrPort) []byte {
	b := binary.NativeEndian.AppendUint16(nil, addressFamily(a.Addr()))
	b = binary.BigEndian.AppendUint16(b, a.Port())
	if a.Addr().Is4() {
		return append(append(b, a.Addr().AsSlice()...), make([]byte, 8)...)
	}
	b = append(b, 0, 0, 0, 0) // flow information
	return append(append(b, a.Addr().AsSlice()...), 0, 0, 0, 0)
}

func decodeEndpoint(b []byte) netip.AddrPort {
	var address []byte
	switch {
	case len(b) >= 8 && binary.NativeEndian.Uint16(b) == unix.AF_INET:
		address = b[4:8]
	case len(b) >= 24 && binary.NativeEndian.Uint16(b) == unix.AF_INET6:
		address = b[8:24]
	default:
		return netip.AddrPort{}
	}
	a, _ := netip.AddrFromSlice(address)
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(b[2:]))
}

// readDevice reads a link and its peers.
func readDevice(index int) (device, error) {
	d := device{peers: map[Key]Peer{}}
	e := netlink.NewAttributeEncoder()
	e.Uint32(deviceIndex, uint32(index))
	attributes, err := e.Encode()
	if err != nil {
		return d, err
	}
	responses, err := execute(commandGetDevice, netlink.Dump, attributes)
	if err != nil {
		return d, err
	}
	for _, r := range responses {
		if err := d.decode(r); err != nil {
			return d, err
		}
	}
	for key, p := range d.peers {
		slices.SortFunc(p.AllowedIPs, comparePrefixes)
		d.peers[key] = p
	}
	return d, nil
}

// decode adds the content of one response. A device with many peers is described by several, and a peer may continue in the next one.
func (d *device) decode(attributes []byte) error {
	decoder, err := netlink.NewAttributeDecoder(attributes)
	if err != nil {
		return err
	}
	for decoder.Next() {
		switch decoder.Type() {
		case devicePublicKey:
			if b := decoder.Bytes(); len(b) == len(d.publicKey) {
				d.publicKey = Key(b)
			}
		case deviceListenPort:
			d.port = decoder.Uint16()
		case devicePeers:
			decoder.Nested(func(list *netlink.AttributeDecoder) error {
				for list.Next() {
					list.Nested(d.decodePeer)
				}
				return list.Err()
			})
		}
	}
	return decoder.Err()
}

func (d *device) decodePeer(decoder *netlink.AttributeDecoder) error {
	var key Key
	var p Peer
	for decoder.Next() {
		switch decoder.Type() {
		case peerPublicKey:
			if b := decoder.Bytes(); len(b) == len(key) {
				key = Key(b)
			}
		case peerEndpoint:
			p.Endpoint = decodeEndpoint(decoder.Bytes())
		case peerAllowedIPs:
			decoder.Nested(func(list *netlink.AttributeDecoder) error {
				for list.Next() {
					list.Nested(p.decodeAllowed)
				}
				return list.Err()
			})
		}
	}
	known := d.peers[key]
	if !p.Endpoint.IsValid() {
		p.Endpoint = known.Endpoint
	}
	p.AllowedIPs = append(known.AllowedIPs, p.AllowedIPs...)
	d.peers[key] = p
	return decoder.Err()
}

func (p *Peer) decodeAllowed(decoder *netlink.AttributeDecoder) error {
	var address netip.Addr
	bits := 0
	for decoder.Next() {
		switch decoder.Type() {
		case allowedAddress:
			address, _ = netip.AddrFromSlice(decoder.Bytes())
		case allowedMask:
			bits = int(decoder.Uint8())
		}
	}
	p.AllowedIPs = append(p.AllowedIPs, netip.PrefixFrom(address, bits))
	return decoder.Err()
}
