package attack

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// hostileNamespace is where attackers may write.
const hostileNamespace = "attack"

// hostile is one of the clients of the attacking process. It makes one attack after the other, with random parameters.
type hostile struct {
	*rand.Rand
	config hostileConfig
	tls    *tls.Config
	ctx    context.Context
	client *http.Client // for requests that are well-formed
}

// The commands of the attacking process. It repeats a command when it is carried out.
const (
	commandAttack = "attack"
	commandPause  = "pause"
)

// runHostile carries out the commands on the standard input, and when that is closed writes how often each attack was made to the standard
// output. An attack counts when it could connect: whether the server then ends it is its own decision.
func runHostile(config hostileConfig) error {
	clients, err := newHostiles(config)
	if err != nil {
		return err
	}
	counts := make([]atomic.Int64, len(hostileAttacks))
	var running sync.WaitGroup
	stop := func() {}
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		switch commands.Text() {
		case commandAttack:
			ctx, cancel := context.WithCancel(context.Background())
			stop = cancel
			for i, h := range clients {
				running.Go(func() { h.run(ctx, i, counts) })
			}
		case commandPause:
			stop()
			running.Wait()
		}
		fmt.Println(commands.Text())
	}
	stop()
	running.Wait()
	report := map[string]int64{}
	for i := range counts {
		report[hostileAttacks[i].name] = counts[i].Load()
	}
	return json.NewEncoder(os.Stdout).Encode(report)
}

func newHostiles(config hostileConfig) ([]*hostile, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(config.CA) {
		return nil, errors.New("no CA certificate")
	}
	server, _, err := net.SplitHostPort(config.Host)
	if err != nil {
		return nil, err
	}
	clients := make([]*hostile, hostileClients)
	for i := range clients {
		h := &hostile{Rand: rand.New(rand.NewPCG(config.Seed, uint64(i))), config: config, tls: &tls.Config{RootCAs: roots, ServerName: server}}
		h.client = &http.Client{Transport: &http.Transport{TLSClientConfig: h.tls.Clone(), ForceAttemptHTTP2: i%2 == 0}}
		clients[i] = h
	}
	return clients, nil
}

// run attacks until ctx is done, and then closes the client's connections. number is that of the client.
func (h *hostile) run(ctx context.Context, number int, counts []atomic.Int64) {
	h.ctx = ctx
	defer h.client.CloseIdleConnections()
	for ctx.Err() == nil {
		// The clients begin with different attacks, so that each is made even in a short run.
		which := h.IntN(len(hostileAttacks))
		if number < len(hostileAttacks) && counts[number].Load() == 0 {
			which = number
		}
		if h.config.Only != "" {
			which = slices.IndexFunc(hostileAttacks, func(a hostileAttack) bool { return a.name == h.config.Only })
		}
		if h.attack(hostileAttacks[which]) == nil {
			counts[which].Add(1)
		}
		h.pause(200 * time.Millisecond)
	}
}

// attack makes one attack of at most ten seconds.
func (h *hostile) attack(attack hostileAttack) error {
	ctx, cancel := context.WithTimeout(h.ctx, time.Duration(1+h.IntN(10))*time.Second)
	defer cancel()
	err := attack.run(h, ctx)
	var closed net.Error
	if errors.Is(err, errConnected) || ctx.Err() != nil && errors.As(err, &closed) {
		return nil
	}
	return err
}

// errConnected is an error after the server was reached: most attacks end so.
var errConnected = errors.New("the connection ended")

// pause sleeps for a random time below most.
func (h *hostile) pause(most time.Duration) {
	select {
	case <-time.After(rand.N(most)):
	case <-h.ctx.Done():
	}
}

// credential is the attacker's token, an invalid one or none.
func (h *hostile) credential() string {
	switch h.IntN(4) {
	case 0:
		return ""
	case 1:
		return "Bearer eyJhbGciOiJSUzI1NiJ9." + h.text(40) + "." + h.text(300)
	}
	return "Bearer " + h.config.Token
}

// text is random text of a length that is valid in headers and JSON.
func (h *hostile) text(n int) string {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
	b := make([]byte, n)
	for i := range b {
		b[i] = letters[h.IntN(len(letters))]
	}
	return string(b)
}

// bytes are random bytes.
func (h *hostile) bytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(h.Uint32())
	}
	return b
}

// hold keeps a connection and reads at most a few bytes of it now and then, until ctx is done.
func (h *hostile) hold(ctx context.Context, conn net.Conn) error {
	one := make([]byte, 16)
	for ctx.Err() == nil {
		if h.IntN(2) == 0 {
			_ = conn.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
			_, _ = conn.Read(one)
		}
		h.pause(time.Second)
	}
	return errConnected
}

// dialTCP opens a connection that is closed when ctx is done, half of the time with a reset.
func (h *hostile) dialTCP(ctx context.Context) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", h.config.Host)
	if err != nil {
		return nil, err
	}
	if h.IntN(2) == 0 {
		_ = conn.(*net.TCPConn).SetLinger(0)
	}
	if h.IntN(2) == 0 {
		_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10) // the server's socket fills soon
	}
	context.AfterFunc(ctx, func() { conn.Close() })
	return conn, nil
}

func (h *hostile) dialTLS(ctx context.Context, protocol string) (*tls.Conn, error) {
	raw, err := h.dialTCP(ctx)
	if err != nil {
		return nil, err
	}
	config := h.tls.Clone()
	config.NextProtos = []string{protocol}
	conn := tls.Client(raw, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, err
	}
	return conn, nil
}

// http1 writes a request of HTTP/1.1. extra are lines of the header.
func (h *hostile) http1(ctx context.Context, method, path, extra string) (*tls.Conn, error) {
	conn, err := h.dialTLS(ctx, "http/1.1")
	if err != nil {
		return nil, err
	}
	header := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: %s\r\n", method, path, h.config.Host)
	if credential := h.credential(); credential != "" {
		header += "Authorization: " + credential + "\r\n"
	}
	_, err = io.WriteString(conn, header+extra)
	return conn, wrapConnected(err)
}

func wrapConnected(err error) error {
	if err != nil {
		return errors.Join(errConnected, err)
	}
	return nil
}

// framer is a client of HTTP/2 that sends single frames. What the server sends is read and discarded, unless the client does not read.
type framer struct {
	*http2.Framer
	conn    *tls.Conn
	encoder *hpack.Encoder
	block   bytes.Buffer
	host    string
	next    uint32 // the next stream
}

// http2 opens a connection of HTTP/2 with an initial window for streams.
func (h *hostile) http2(ctx context.Context, window uint32, reads bool) (*framer, error) {
	conn, err := h.dialTLS(ctx, "h2")
	if err != nil {
		return nil, err
	}
	f := &framer{Framer: http2.NewFramer(conn, conn), conn: conn, host: h.config.Host, next: 1}
	f.encoder = hpack.NewEncoder(&f.block)
	f.AllowIllegalWrites = true
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		return nil, wrapConnected(err)
	}
	if err := f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window}); err != nil {
		return nil, wrapConnected(err)
	}
	if reads {
		go func() { _, _ = io.Copy(io.Discard, conn) }()
	}
	return f, nil
}

// headers compresses the headers of a request. more are name and value in turn.
func (f *framer) headers(method, path, credential string, more ...string) []byte {
	f.block.Reset()
	fields := append([]string{":method", method, ":scheme", "https", ":path", path, ":authority", f.host}, more...)
	if credential != "" {
		fields = append(fields, "authorization", credential)
	}
	for i := 0; i < len(fields); i += 2 {
		_ = f.encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return f.block.Bytes()
}

// request opens a stream with a request that fits into one frame.
func (f *framer) request(method, path, credential string, end bool, more ...string) (uint32, error) {
	id := f.next
	f.next += 2
	block := f.headers(method, path, credential, more...)
	return id, wrapConnected(f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndStream: end, EndHeaders: true}))
}

// do sends a well-formed request with the attacker's token and reads at most a part of the response.
func (h *hostile) do(ctx context.Context, method, path, contentType string, body io.Reader) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, "https://"+h.config.Host+path, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+h.config.Token)
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := h.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(io.LimitReader(resp.Body, 1<<20))
}
