package attack

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/gorilla/websocket"
	"golang.org/x/net/http2"
)

// hostileAttack is a kind of attack. run returns nil or an errConnected when the server was reached.
type hostileAttack struct {
	name string
	run  func(h *hostile, ctx context.Context) error
}

// hostileAttacks are the attacks of TestHostileClients.
var hostileAttacks = []hostileAttack{
	{"connections without TLS", (*hostile).plainText},
	{"half a TLS handshake", (*hostile).halfHandshake},
	{"TLS handshakes", (*hostile).handshakes},
	{"wrong preface", (*hostile).wrongPreface},
	{"slow header", (*hostile).slowHeader},
	{"malformed HTTP/1.1", (*hostile).malformed},
	{"huge header", (*hostile).hugeHeader},
	{"slow reader", (*hostile).slowReader},
	{"slow writer", (*hostile).slowWriter},
	{"huge body", (*hostile).hugeBody},
	{"zero window", func(h *hostile, ctx context.Context) error { return h.window(ctx, 0) }},
	{"window of one byte", func(h *hostile, ctx context.Context) error { return h.window(ctx, 1) }},
	{"rapid reset", (*hostile).rapidReset},
	{"stream flood", (*hostile).streamFlood},
	{"continuation flood", (*hostile).continuationFlood},
	{"control frame flood", (*hostile).controlFlood},
	{"random frames", (*hostile).randomFrames},
	{"watches without a reader", (*hostile).deafWatches},
	{"WebSocket junk", (*hostile).socketJunk},
	{"list pages", (*hostile).listPages},
	{"patches at the limits", (*hostile).patches},
	{"applies at the limits", (*hostile).applies},
	{"large updates", (*hostile).largeUpdates},
	{"malformed objects", (*hostile).malformedObjects},
}

// plainText sends junk, or HTTP, to the port of TLS.
func (h *hostile) plainText(ctx context.Context) error {
	conn, err := h.dialTCP(ctx)
	if err != nil {
		return err
	}
	if h.IntN(2) == 0 {
		_, err = io.WriteString(conn, "GET /api HTTP/1.1\r\nHost: "+h.config.Host+"\r\n\r\n")
	} else {
		_, err = conn.Write(h.bytes(1 + h.IntN(4096)))
	}
	if err != nil {
		return wrapConnected(err)
	}
	return h.hold(ctx, conn)
}

// halfHandshake begins a TLS record, or a handshake, and keeps the connection.
func (h *hostile) halfHandshake(ctx context.Context) error {
	for range 1 + h.IntN(20) {
		conn, err := h.dialTCP(ctx)
		if err != nil {
			return err
		}
		// The header of a ClientHello and a part of it.
		if _, err := conn.Write(append([]byte{22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3}, h.bytes(h.IntN(200))...)); err != nil {
			return wrapConnected(err)
		}
	}
	<-ctx.Done()
	return errConnected
}

// handshakes opens connections and closes them.
func (h *hostile) handshakes(ctx context.Context) error {
	for range 20 {
		conn, err := h.dialTLS(ctx, []string{"h2", "http/1.1"}[h.IntN(2)])
		if err != nil {
			return err
		}
		conn.NetConn().Close()
		h.pause(100 * time.Millisecond)
	}
	return nil
}

// wrongPreface negotiates HTTP/2 and sends something else.
func (h *hostile) wrongPreface(ctx context.Context) error {
	conn, err := h.dialTLS(ctx, "h2")
	if err != nil {
		return err
	}
	preface := []byte(http2.ClientPreface)
	switch h.IntN(3) {
	case 0:
		preface = h.bytes(100)
	case 1:
		preface[h.IntN(len(preface))] ^= 1
	case 2:
		preface = preface[:h.IntN(len(preface))]
	}
	if _, err := conn.Write(preface); err != nil {
		return wrapConnected(err)
	}
	return h.hold(ctx, conn)
}

// slowHeader sends the lines of a header one after the other.
func (h *hostile) slowHeader(ctx context.Context) error {
	conn, err := h.http1(ctx, "GET", largeList, "")
	for i := 0; err == nil && ctx.Err() == nil; i++ {
		_, err = fmt.Fprintf(conn, "X-%d: %s\r\n", i, h.text(10))
		h.pause(time.Second)
	}
	return wrapConnected(err)
}

// malformed sends requests that violate HTTP/1.1.
func (h *hostile) malformed(ctx context.Context) error {
	extra := []string{
		"Content-Length: -1\r\n\r\n", "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
		"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nx", "Transfer-Encoding: chunked, identity\r\n\r\n", " folded\r\n\r\n", "no colon\r\n\r\n",
		"Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n", "Expect: 100-continue\r\nContent-Length: 1000000\r\n\r\n", "X\x00: y\r\n\r\n",
		strings.Repeat("GET /api HTTP/1.1\r\n", 100),
	}
	method := []string{"GET", "POST", "PUT", "PATCH", "DELETE", h.text(20), "CONNECT", "PRI"}[h.IntN(8)]
	path := []string{largeList, "/" + h.text(h.IntN(60_000)), "/api/v1/namespaces/../../%2e%2e/%00", "*", h.text(5), "/api/v1/pods?watch=" + h.text(5) + "&timeoutSeconds=-5"}[h.IntN(6)]
	conn, err := h.http1(ctx, method, path, extra[h.IntN(len(extra))])
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(conn, 64<<10))
	return h.hold(ctx, conn)
}

// hugeHeader sends up to four megabytes of headers, over either version of HTTP.
func (h *hostile) hugeHeader(ctx context.Context) error {
	if h.IntN(2) == 0 {
		conn, err := h.http1(ctx, "GET", "/api", "")
		for range 64 {
			if err == nil {
				_, err = fmt.Fprintf(conn, "X-%s: %s\r\n", h.text(8), strings.Repeat("x", 64<<10))
			}
		}
		return wrapConnected(err)
	}
	f, err := h.http2(ctx, 1<<16, true)
	if err != nil {
		return err
	}
	block := f.headers("GET", "/api", h.credential(), "x-large", strings.Repeat(h.text(16), 256<<10))
	id := f.next
	err = f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block[:1000], EndStream: true})
	for block = block[1000:]; err == nil; {
		n := min(len(block), 16<<10)
		err = f.WriteContinuation(id, n == len(block), block[:n])
		if block = block[n:]; len(block) == 0 {
			break
		}
	}
	return wrapConnected(err)
}

// slowReader requests a large list over HTTP/1.1 and hardly reads it.
func (h *hostile) slowReader(ctx context.Context) error {
	extra := "\r\n"
	if h.IntN(2) == 0 {
		extra = "Accept-Encoding: gzip\r\n\r\n"
	}
	path := largeList
	if h.IntN(2) == 0 {
		path += "?resourceVersion=0"
	}
	conn, err := h.http1(ctx, "GET", path, extra)
	if err != nil {
		return err
	}
	return h.hold(ctx, conn)
}

// slowWriter announces a body and sends it byte by byte.
func (h *hostile) slowWriter(ctx context.Context) error {
	conn, err := h.http1(ctx, "POST", "/api/v1/namespaces/"+hostileNamespace+"/configmaps", "Content-Type: application/json\r\nContent-Length: 3000000\r\n\r\n")
	for err == nil && ctx.Err() == nil {
		_, err = io.WriteString(conn, "{")
		h.pause(200 * time.Millisecond)
	}
	return wrapConnected(err)
}

// hugeBody sends a body without end.
func (h *hostile) hugeBody(ctx context.Context) error {
	conn, err := h.http1(ctx, "POST", "/api/v1/namespaces/"+hostileNamespace+"/configmaps", "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
	chunk := fmt.Sprintf("8000\r\n%s\r\n", strings.Repeat("[", 0x8000))
	for i := 0; err == nil && i < 200; i++ {
		_, err = io.WriteString(conn, chunk)
	}
	return wrapConnected(err)
}

// window requests lists and watches over HTTP/2 and grants a window of a few bytes.
func (h *hostile) window(ctx context.Context, window uint32) error {
	f, err := h.http2(ctx, window, h.IntN(2) == 0)
	if err != nil {
		return err
	}
	credential := h.credential()
	for range h.IntN(60) {
		path := largeList
		if h.IntN(3) == 0 {
			path += "?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
		}
		if _, err := f.request("GET", path, credential, true); err != nil {
			return err
		}
	}
	for ctx.Err() == nil && f.next > 1 && window > 0 {
		if err := f.WriteWindowUpdate(1+2*uint32(h.IntN(int(f.next/2))), 1); err != nil {
			return wrapConnected(err)
		}
		h.pause(20 * time.Millisecond)
	}
	<-ctx.Done()
	return errConnected
}

// rapidReset resets requests as soon as they are sent.
func (h *hostile) rapidReset(ctx context.Context) error {
	f, err := h.http2(ctx, 1<<16, true)
	if err != nil {
		return err
	}
	credential := h.credential()
	for range 500 {
		id, err := f.request("GET", largeList, credential, true)
		if err == nil {
			err = wrapConnected(f.WriteRSTStream(id, http2.ErrCodeCancel))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// streamFlood opens more streams than allowed, some of them with a body that does not come.
func (h *hostile) streamFlood(ctx context.Context) error {
	f, err := h.http2(ctx, uint32(h.IntN(1<<16)), true)
	if err != nil {
		return err
	}
	credential := h.credential()
	for range 400 {
		if _, err := f.request([]string{"GET", "POST"}[h.IntN(2)], "/api/v1/namespaces/"+hostileNamespace+"/configmaps", credential, h.IntN(2) == 0); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return errConnected
}

// continuationFlood sends a header in frames that never end.
func (h *hostile) continuationFlood(ctx context.Context) error {
	f, err := h.http2(ctx, 1<<16, true)
	if err != nil {
		return err
	}
	err = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: f.headers("GET", "/api", ""), EndStream: true})
	part := f.headers("GET", "/api", "", "x", h.text(100))
	if h.IntN(2) == 0 {
		part = nil
	}
	for i := 0; err == nil && i < 20_000; i++ {
		err = f.WriteContinuation(1, false, part)
	}
	return wrapConnected(err)
}

// controlFlood sends frames that the server responds to, and does not read the responses.
func (h *hostile) controlFlood(ctx context.Context) error {
	f, err := h.http2(ctx, 1<<16, h.IntN(2) == 0)
	if err != nil {
		return err
	}
	which := h.IntN(5)
	for i := 0; err == nil && i < 20_000; i++ {
		switch which {
		case 0:
			err = f.WritePing(false, [8]byte{1})
		case 1:
			err = f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(i)})
		case 2:
			err = f.WriteData(uint32(1+2*i), false, nil)
		case 3:
			err = f.WriteWindowUpdate(0, 1)
		case 4:
			err = f.WritePriority(uint32(1+2*i), http2.PriorityParam{StreamDep: uint32(3 + 2*i)})
		}
	}
	return wrapConnected(err)
}

// randomFrames sends frames of random types, flags, streams and content.
func (h *hostile) randomFrames(ctx context.Context) error {
	for range 20 {
		f, err := h.http2(ctx, h.Uint32()>>1, true)
		if err != nil {
			return err
		}
		for i := 0; err == nil && i < 50; i++ {
			if h.IntN(4) == 0 {
				_, err = f.request("GET", "/api/v1/pods?limit=1", h.credential(), h.IntN(2) == 0)
				continue
			}
			err = f.WriteRawFrame(http2.FrameType(h.IntN(12)), http2.Flags(h.Uint32()), h.Uint32()>>uint(h.IntN(32)), h.bytes(h.IntN(100)))
		}
		f.conn.NetConn().Close()
	}
	return nil
}

// deafWatches opens watches and does not read them. Others make the events.
func (h *hostile) deafWatches(ctx context.Context) error {
	path := "/api/v1/configmaps?watch=true"
	if h.IntN(2) == 0 {
		conn, err := h.http1(ctx, "GET", path, "\r\n")
		if err != nil {
			return err
		}
		<-ctx.Done()
		return wrapConnected(conn.Close())
	}
	f, err := h.http2(ctx, uint32(h.IntN(1<<20)), false)
	if err != nil {
		return err
	}
	credential := h.credential()
	for range 90 {
		if _, err := f.request("GET", path, credential, true); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return errConnected
}

// socketJunk upgrades requests to WebSockets and sends random frames and bytes.
func (h *hostile) socketJunk(ctx context.Context) error {
	config := h.tls.Clone()
	config.NextProtos = []string{"http/1.1"}
	dialer := websocket.Dialer{TLSClientConfig: config}
	path := []string{
		"/api/v1/configmaps?watch=true", "/api/v1/namespaces/" + hostileNamespace + "/pods/none/exec?command=x&stdout=true", "/api/v1/pods?watch=1&labelSelector=" + h.text(50),
	}[h.IntN(3)]
	conn, resp, err := dialer.DialContext(ctx, "wss://"+h.config.Host+path, http.Header{"Authorization": {"Bearer " + h.config.Token}})
	if err != nil {
		if resp != nil {
			return errConnected // refused
		}
		return err
	}
	defer conn.Close()
	for i := 0; err == nil && i < 50; i++ {
		switch h.IntN(4) {
		case 0:
			err = conn.WriteMessage(websocket.BinaryMessage, h.bytes(h.IntN(5000)))
		case 1:
			_, err = conn.NetConn().Write(h.bytes(h.IntN(200)))
		case 2:
			_, err = conn.NetConn().Write(append(binary.BigEndian.AppendUint64([]byte{0x82, 0xff}, h.Uint64()>>1), 0, 0, 0, 0))
		case 3:
			err = conn.WriteControl(websocket.PingMessage, h.bytes(h.IntN(125)), time.Now().Add(time.Second))
		}
	}
	return wrapConnected(err)
}

// listPages reads a list in pages of one object, and asks for pages that do not exist.
func (h *hostile) listPages(ctx context.Context) error {
	token := ""
	for range 1000 {
		query := url.Values{"limit": {"1"}, "continue": {token}}
		if h.IntN(20) == 0 {
			query.Set("continue", h.text(200))
		}
		if h.IntN(20) == 0 {
			query = url.Values{"labelSelector": {strings.Repeat("a!=b,", h.IntN(3000)) + "a"}}
		}
		body, err := h.do(ctx, http.MethodGet, "/api/v1/namespaces/default/serviceaccounts?"+query.Encode(), "", nil)
		if err != nil {
			return err
		}
		var page struct {
			Metadata struct{ Continue string }
		}
		if json.Unmarshal(body, &page) == nil {
			token = page.Metadata.Continue
		}
	}
	return nil
}

// object is the path of one of a few objects that attackers write.
func (h *hostile) object() string {
	return fmt.Sprintf("/api/v1/namespaces/%s/configmaps/object-%d", hostileNamespace, h.IntN(8))
}

// create creates the object of a path, unless it exists.
func (h *hostile) create(ctx context.Context, path, content string) error {
	name := path[strings.LastIndexByte(path, '/')+1:]
	body := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{"value":%q}}`, name, content)
	_, err := h.do(ctx, http.MethodPost, strings.TrimSuffix(path, "/"+name), "application/json", strings.NewReader(body))
	return err
}

// patches sends patches with as many operations, levels and bytes as are allowed, and more.
func (h *hostile) patches(ctx context.Context) error {
	path := h.object()
	if err := h.create(ctx, path, ""); err != nil {
		return err
	}
	var contentType, body string
	switch h.IntN(5) {
	case 0:
		contentType = "application/json-patch+json"
		body = `[{"op":"add","path":"/metadata/finalizers","value":[]}` +
			strings.Repeat(`,{"op":"add","path":"/metadata/finalizers/0","value":"a/b"}`, 9_998+h.IntN(4)) + "]"
	case 1:
		contentType = "application/json-patch+json"
		body = "[" + strings.TrimSuffix(strings.Repeat(`{"op":"copy","from":"/metadata","path":"/metadata/annotations"},`, 500), ",") + "]"
	case 2:
		contentType = "application/merge-patch+json"
		body = strings.Repeat(`{"data":`, 5000+h.IntN(10_000)) + "1" + strings.Repeat("}", 5000+h.IntN(10_000))
	case 3:
		contentType = "application/strategic-merge-patch+json"
		var owners strings.Builder
		for i := range 5000 {
			fmt.Fprintf(&owners, `,{"apiVersion":"v1","kind":"Pod","name":"p","uid":"%d"}`, i)
		}
		body = `{"metadata":{"ownerReferences":[` + owners.String()[1:] + `]}}`
	case 4:
		contentType = "application/merge-patch+json"
		body = `{"data":{"value":"` + strings.Repeat("x", 2_900_000+h.IntN(400_000)) + `"}}`
	}
	_, err := h.do(ctx, http.MethodPatch, path, contentType, strings.NewReader(body))
	return err
}

// applies sends applies with many fields, many managers, nested aliases and much text.
func (h *hostile) applies(ctx context.Context) error {
	path := h.object()
	name := path[strings.LastIndexByte(path, '/')+1:]
	head := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + "}\n"
	var body strings.Builder
	switch h.IntN(3) {
	case 0:
		body.WriteString(head + "data:\n")
		for i := range 20_000 {
			fmt.Fprintf(&body, "  key-%d: %q\n", i, h.text(3))
		}
	case 1:
		body.WriteString(head + "data:\n  a: &a [x,x,x,x,x,x,x,x,x]\n")
		for c := 'b'; c <= 'i'; c++ {
			fmt.Fprintf(&body, "  %c: &%c [%s]\n", c, c, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*%c,", c-1), 9), ","))
		}
	case 2:
		body.WriteString(head + "data: " + strings.Repeat("{a: ", 5000))
	}
	query := "?force=true&fieldManager=" + h.text(1+h.IntN(130))
	_, err := h.do(ctx, http.MethodPatch, path+query, "application/apply-patch+yaml", strings.NewReader(body.String()))
	return err
}

// largeUpdates writes large values again and again, which fill the history of all config maps.
func (h *hostile) largeUpdates(ctx context.Context) error {
	path := h.object()
	if err := h.create(ctx, path, ""); err != nil {
		return err
	}
	for range 10 {
		body := `{"data":{"value":"` + h.text(8) + strings.Repeat("x", h.IntN(1_000_000)) + `"}}`
		if _, err := h.do(ctx, http.MethodPatch, path, "application/merge-patch+json", strings.NewReader(body)); err != nil {
			return err
		}
		h.pause(500 * time.Millisecond)
	}
	return nil
}

// malformedObjects creates objects with random errors: in their syntax, encoding, types and sizes.
func (h *hostile) malformedObjects(ctx context.Context) error {
	for range 20 {
		body := []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x","labels":{"a":"b"},"finalizers":["a/b"]},"data":{"a":"b"},"binaryData":{"c":"AAAA"}}`)
		for range 1 + h.IntN(5) {
			body[h.IntN(len(body))] = byte(h.Uint32())
		}
		contentType := []string{"application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "application/cbor", h.text(10)}[h.IntN(5)]
		switch h.IntN(5) {
		case 0:
			body = append([]byte("k8s\x00"), h.bytes(500)...)
		case 1:
			body = []byte(strings.Repeat("[", 100_000))
		case 2:
			body = []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x","finalizers":[` + strings.Repeat(`"a/b",`, 40_000) + `"c/d"]}}`)
		}
		if _, err := h.do(ctx, http.MethodPost, "/api/v1/namespaces/"+hostileNamespace+"/configmaps?fieldValidation=Strict", contentType, strings.NewReader(string(body))); err != nil {
			return err
		}
	}
	return nil
}
