package doctor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"skiff/internal/network/nft"
)

// minKernel is the first version of Linux with everything that a node uses: mount_setattr, with which volumes become read-only. The rules of the Service proxy need
// 5.9. bestKernel is the first one in which every file system that skiff supports can be used in the user namespace of a pod.
var (
	minKernel  = [2]int{5, 12}
	bestKernel = [2]int{6, 3}
)

// kernelState is what the kernel can do.
type kernelState struct {
	release string
	// missing has an error for each feature of kernelFeatures that was tried and failed, by name.
	missing map[string]error
	// denied is why features could not be tried.
	denied error
}

// kernelFeatures are the features that a node needs: what breaks without them, and the option of the kernel's configuration.
var kernelFeatures = []struct{ name, breaks, option string }{
	{"overlayfs", "no image is unpacked, so no pod starts", "CONFIG_OVERLAY_FS"},
	{"bridge", "the pod network is not set up, so only pods in the host's network start", "CONFIG_BRIDGE"},
	{"veth", "the pod network is not set up, so only pods in the host's network start", "CONFIG_VETH"},
	{"vxlan", "pods of different nodes do not reach each other; --network-backend=host-gw does without", "CONFIG_VXLAN"},
	{"nftables", "Services, network policies and masquerading do not work", "CONFIG_NF_TABLES, CONFIG_NFT_NAT, CONFIG_NFT_MASQ and CONFIG_NFT_CT"},
}

func readKernel(context.Context) (s kernelState, err error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return s, fmt.Errorf("read kernel version: %w", err)
	}
	s.release = unix.ByteSliceToString(name.Release[:])
	s.missing = map[string]error{}
	s.denied = s.try()
	return s, nil
}

// try uses the features. It opens a file system without mounting it, and makes links and rules in a network namespace that nobody else sees. The kernel loads its modules
// meanwhile, as it would for skiff.
func (s *kernelState) try() error {
	fd, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err == nil {
		unix.Close(fd)
	}
	if errors.Is(err, unix.EPERM) {
		return err
	}
	s.set("overlayfs", err)
	return inNetworkNamespace(func() {
		for _, link := range []netlink.Link{
			&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "bridge"}},
			&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "veth"}, PeerName: "peer"},
			&netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "vxlan"}, VxlanId: 1, Port: 8472},
		} {
			s.set(link.Attrs().Name, netlink.LinkAdd(link))
		}
		s.set("nftables", tryRules())
	})
}

func (s *kernelState) set(feature string, err error) {
	if err != nil {
		s.missing[feature] = err
	}
}

// tryRules writes a table with the kinds of rules that skiff uses.
func tryRules() error {
	m := nft.NewModel("skiff-doctor")
	m.Replace("doctor", nft.Part{Chains: []nft.Chain{{
		Name: "postrouting", Hook: &nft.Hook{Type: "nat", Point: "postrouting", Priority: 100},
		Rules: []nft.Rule{nft.NewRule(nft.StateNew(), nft.Masquerade())},
	}}})
	w := nft.NewWriter(m, slog.New(slog.DiscardHandler))
	defer w.Close()
	_, err := w.Apply()
	return err
}

// inNetworkNamespace calls f in a network namespace of its own, which ends with it.
func inNetworkNamespace(f func()) error {
	done := make(chan error, 1)
	go func() {
		// The thread stays locked, so that it ends with the goroutine, and the namespace with it.
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			f()
		} else {
			err = fmt.Errorf("make a network namespace: %w", err)
		}
		done <- err
	}()
	return <-done
}

func decideKernel(s kernelState) (findings []Finding) {
	const upgrade = "boot a newer kernel of your distribution"
	version, ok := parseKernel(s.release)
	switch {
	case !ok:
		// Nothing is known about such a kernel.
	case olderKernel(version, minKernel):
		findings = append(findings, Finding{
			Severity: Error, Problem: fmt.Sprintf("Linux %s is older than %d.%d", s.release, minKernel[0], minKernel[1]),
			Breaks: "read-only volumes cannot be mounted, and before 5.9 the rules of Services are rejected", When: whenStarted, Fix: upgrade,
		})
	case olderKernel(version, bestKernel):
		findings = append(findings, Finding{
			Severity: Warning, Problem: fmt.Sprintf("Linux %s is older than %d.%d", s.release, bestKernel[0], bestKernel[1]),
			Breaks: "pods with user namespaces (hostUsers: false) that have emptyDir volumes in memory, Secrets or ConfigMaps", When: "when such a pod starts", Fix: upgrade,
		})
	}
	for _, feature := range kernelFeatures {
		if err := s.missing[feature.name]; err != nil {
			findings = append(findings, Finding{
				Severity: Error, Problem: fmt.Sprintf("the kernel does not have %s: %v", feature.name, err), Breaks: feature.breaks, When: whenStarted,
				Fix: "load the kernel's module, or boot a kernel with " + feature.option,
			})
		}
	}
	if s.denied != nil {
		findings = append(findings, notExamined(fmt.Errorf("features of the kernel: %w", s.denied), 0))
	}
	return findings
}

// parseKernel returns the first two numbers of a release such as 6.1.0-18-amd64.
func parseKernel(release string) (version [2]int, ok bool) {
	parts := strings.SplitN(release, ".", 3)
	if len(parts) < 2 {
		return version, false
	}
	for i := range version {
		end := strings.IndexFunc(parts[i], func(r rune) bool { return r < '0' || r > '9' })
		if end < 0 {
			end = len(parts[i])
		}
		n, err := strconv.Atoi(parts[i][:end])
		if err != nil {
			return version, false
		}
		version[i] = n
	}
	return version, true
}

func olderKernel(a, b [2]int) bool { return a[0] < b[0] || a[0] == b[0] && a[1] < b[1] }
