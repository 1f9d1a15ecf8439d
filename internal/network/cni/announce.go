package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A pod must not send or receive a packet before its network policies are in force, and its address is in its status only when it runs. So the plugin
// announces the addresses it has reserved to the process that enforces policies, over a Unix socket, and creates the link when that process has
// answered. A connection carries one request and one response, both JSON.

const (
	// announceTimeout is how long the plugin waits, for the process and for its answer. Then the runtime reports an error, and the kubelet tries again.
	// The process answers after answerTimeout at the latest, so that the error has its reason.
	announceTimeout = 10 * time.Second
	answerTimeout   = 8 * time.Second
	// announceRetry is the time until a connection is tried again.
	announceRetry = 50 * time.Millisecond
	// maxAnnouncement bounds the size of a request.
	maxAnnouncement = 16 << 10
	// maxAnnouncing bounds the requests that are served concurrently. Others wait to be accepted.
	maxAnnouncing = 256
)

// Announcement says which addresses were reserved for a pod.
type Announcement struct {
	Namespace string       `json:"namespace"`
	Pod       string       `json:"pod"`
	UID       string       `json:"uid"`
	Addresses []netip.Addr `json:"addresses"`
}

// announcementResult is the response. An empty error means that the pod may have its network.
type announcementResult struct {
	Error string `json:"error,omitempty"`
}

// errNotAnnounced means that the process that enforces policies has not confirmed a pod in time. The runtime tries again.
var errNotAnnounced = errors.New("the network policies of the pod are not in force")

// announce waits until the network policies of an attachment are in force.
func announce(socket string, a Attachment) error {
	if socket == "" || a.Pod == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), announceTimeout)
	defer cancel()
	request, err := json.Marshal(Announcement{Namespace: a.Namespace, Pod: a.Pod, UID: a.UID, Addresses: a.Addresses})
	if err != nil {
		return fmt.Errorf("%w: %w", errNotAnnounced, err)
	}
	connection, err := dialUntilServed(ctx, socket)
	if err != nil {
		return fmt.Errorf("%w: %w", errNotAnnounced, err)
	}
	defer connection.Close()
	if err := exchange(ctx, connection, request); err != nil {
		return fmt.Errorf("%w: %w", errNotAnnounced, err)
	}
	return nil
}

// dialUntilServed connects to a socket. The process may be starting.
func dialUntilServed(ctx context.Context, socket string) (net.Conn, error) {
	for {
		connection, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if err == nil {
			return connection, nil
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(announceRetry):
		}
	}
}

// exchange sends a request and reads the response.
func exchange(ctx context.Context, connection net.Conn, request []byte) error {
	if deadline, ok := ctx.Deadline(); ok {
		if err := connection.SetDeadline(deadline); err != nil {
			return err
		}
	}
	if _, err := connection.Write(request); err != nil {
		return fmt.Errorf("send announcement: %w", err)
	}
	var result announcementResult
	if err := json.NewDecoder(connection).Decode(&result); err != nil {
		return fmt.Errorf("read the answer to an announcement: %w", err)
	}
	if result.Error != "" {
		return errors.New(result.Error)
	}
	return nil
}

// ServeAnnouncements calls handle for each announcement until ctx is done. handle returns when the pod may have its network; its context is done
// when the plugin no longer waits.
func ServeAnnouncements(ctx context.Context, socket string, handle func(context.Context, Announcement) error) error {
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		return fmt.Errorf("serve announcements of pods: %w", err)
	}
	// Of a process that was killed. The data directory is locked, so no other process uses it.
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("serve announcements of pods: %w", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return fmt.Errorf("serve announcements of pods: %w", err)
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		return errors.Join(fmt.Errorf("serve announcements of pods: %w", err), listener.Close())
	}
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	var running sync.WaitGroup
	defer running.Wait()
	seats := make(chan struct{}, maxAnnouncing)
	for {
		connection, err := listener.Accept()
		if ctx.Err() != nil {
			if err == nil {
				_ = connection.Close()
			}
			return nil
		}
		if isTransient(err) {
			select {
			case <-ctx.Done():
			case <-time.After(announceRetry):
			}
			continue
		}
		if err != nil {
			return errors.Join(fmt.Errorf("serve announcements of pods: %w", err), listener.Close())
		}
		seats <- struct{}{}
		running.Go(func() {
			defer func() { <-seats }()
			serveAnnouncement(ctx, connection, handle)
		})
	}
}

// isTransient reports whether accepting a connection has failed for lack of resources, or because the plugin has ended.
func isTransient(err error) bool {
	return slices.ContainsFunc([]error{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.ECONNABORTED}, func(other error) bool { return errors.Is(err, other) })
}

// serveAnnouncement serves one connection.
func serveAnnouncement(ctx context.Context, connection net.Conn, handle func(context.Context, Announcement) error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	defer connection.Close()
	stop := context.AfterFunc(ctx, func() { _ = connection.SetReadDeadline(time.Now()) })
	defer stop()
	var result announcementResult
	var a Announcement
	if err := json.NewDecoder(io.LimitReader(connection, maxAnnouncement)).Decode(&a); err != nil {
		result.Error = fmt.Sprintf("read announcement: %v", err)
	} else if err := handle(ctx, a); err != nil {
		result.Error = err.Error()
	}
	text, err := json.Marshal(result)
	if err == nil {
		// It fails if the plugin no longer waits.
		_, _ = connection.Write(text)
	}
}
