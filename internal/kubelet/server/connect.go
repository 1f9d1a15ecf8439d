package server

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"
)

const (
	// maxPodConnections bounds the connections to pods that are open at the same time.
	maxPodConnections = 1000
	// podDialTimeout bounds the time to connect to a pod.
	podDialTimeout = 10 * time.Second
	// halfClosedTimeout bounds how long a side may go on sending when the other one has finished.
	halfClosedTimeout = 5 * time.Minute
	// upgradeTCP is the protocol that the client's connection is upgraded to.
	upgradeTCP = "tcp"
)

// connect connects an API server whose host has no route to pods to an address of a pod, and copies what both send. Only the addresses that
// the runtime reports for this one pod are allowed, and none of a pod in the host's network: neither an object of the API nor the client decides
// what they are.
func (s *Server) connect(w http.ResponseWriter, r *http.Request) {
	if !strings.EqualFold(r.Header.Get("Upgrade"), upgradeTCP) {
		http.Error(w, "the connection must be upgraded to "+upgradeTCP, http.StatusBadRequest)
		return
	}
	address, err := netip.ParseAddrPort(r.URL.Query().Get("address"))
	if err != nil || address.Port() == 0 {
		http.Error(w, "address: must be an IP address and a port", http.StatusBadRequest)
		return
	}
	allowed, err := s.isPodAddress(r, address.Addr())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if !allowed {
		// Not 404, by which clients recognize a kubelet that does not connect to pods.
		http.Error(w, fmt.Sprintf("%s is not an address of a running pod %s/%s of this node", address.Addr(), r.PathValue("namespace"), r.PathValue("pod")), http.StatusForbidden)
		return
	}
	defer s.podConnections.Add(-1)
	if s.podConnections.Add(1) > maxPodConnections {
		http.Error(w, fmt.Sprintf("%d connections to pods are open", maxPodConnections), http.StatusServiceUnavailable)
		return
	}
	pod, err := dialPod(r.Context(), address)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer pod.Close()
	client, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer client.Close()
	if _, err := fmt.Fprintf(client, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", upgradeTCP); err != nil {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		relay(pod, client, buffered.Reader)
	}()
	relay(client, pod, pod)
	<-done
}

func dialPod(ctx context.Context, address netip.AddrPort) (net.Conn, error) {
	return (&net.Dialer{Timeout: podDialTimeout}).DialContext(ctx, "tcp", address.String())
}

// isPodAddress reports whether the runtime has given the address to the pod of the request. An IPv4 address in IPv6 form is another address.
func (s *Server) isPodAddress(r *http.Request, ip netip.Addr) (bool, error) {
	pod, ok := s.Pods.Pod(r.PathValue("namespace"), r.PathValue("pod"))
	if !ok || pod.Spec.HostNetwork {
		return false, nil
	}
	observed, err := s.Runtime.ReadPod(r.Context(), pod.UID)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(observed.IPs, func(text string) bool {
		own, err := netip.ParseAddr(text)
		return err == nil && own == ip
	}), nil
}

// relay copies what one side sends, read from received, until it has finished. It tells the other side, which then has a limited time to finish
// as well. An error ends both directions.
func relay(to, from net.Conn, received io.Reader) {
	_, err := io.Copy(to, received)
	if err == nil {
		err = to.(interface{ CloseWrite() error }).CloseWrite()
	}
	if err != nil {
		_ = to.Close()
		_ = from.Close()
		return
	}
	deadline := time.Now().Add(halfClosedTimeout)
	_, _ = to.SetReadDeadline(deadline), from.SetWriteDeadline(deadline)
}
