package cni

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Bandwidth is the limits of a pod, from its annotations kubernetes.io/ingress-bandwidth and kubernetes.io/egress-bandwidth. Rates are in bits per
// second and bursts in bits; 0: no limit.
type Bandwidth struct {
	IngressRate  uint64 `json:"ingressRate,omitempty"`
	IngressBurst uint64 `json:"ingressBurst,omitempty"`
	EgressRate   uint64 `json:"egressRate,omitempty"`
	EgressBurst  uint64 `json:"egressBurst,omitempty"`
}

const (
	// minBurst has room for packets that the kernel sends as one.
	minBurst = 64 << 10
	// queueTime is how long packets may wait, in parts of a second: 1/40 is 25 ms.
	queueTime = 40
	// burstTime bounds the burst to what the rate allows in 1/10 s. Runtimes ask for bursts of gigabytes if the pod does not say.
	burstTime = 10
)

// tokenBucket is the limit of packets that leave by a link.
type tokenBucket struct {
	// rate is in bytes per second; burst and limit are in bytes.
	rate         uint64
	burst, limit uint32
}

// planLimit computes a token bucket of a rate and a burst in bits.
func planLimit(rate, burst uint64) tokenBucket {
	const maxSize = 1 << 30
	t := tokenBucket{rate: max(rate/8, 1)}
	size := min(burst/8, t.rate/burstTime)
	t.burst = uint32(min(max(size, minBurst), maxSize))
	t.limit = uint32(min(t.rate/queueTime+uint64(t.burst), 2*maxSize))
	return t
}

// limitLink limits what leaves by a link: on the host what the pod receives, in the pod what it sends.
func limitLink(link netlink.Link, rate, burst uint64) error {
	if rate == 0 {
		return nil
	}
	t := planLimit(rate, burst)
	err := netlink.QdiscReplace(&netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       t.rate, Limit: t.limit, Buffer: netlink.Xmittime(t.rate, t.burst),
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("limit the bandwidth of %s: the kernel has no queueing discipline tbf: %w", link.Attrs().Name, err)
	}
	if err != nil {
		return fmt.Errorf("limit the bandwidth of %s: %w", link.Attrs().Name, err)
	}
	return nil
}
