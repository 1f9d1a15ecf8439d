package backup

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The bounds of requests to an object store. Snapshots are written and read in parts, one at a time, so that the memory is bounded and a
// failure repeats one part only.
const (
	defaultPart    = 16 << 20
	maxParts       = 10000 // of one object: the limit of S3
	maxResponse    = 4 << 20
	maxListedPages = 1000
	attempts       = 4
	retryPause     = time.Second
	requestTimeout = 5 * time.Minute
	discardTimeout = time.Minute
)

// S3Options are the place of snapshots in an object store.
type S3Options struct {
	// Endpoint is the URL of the service. Its scheme is https, or http for an address of this host.
	Endpoint string
	Region   string
	Bucket   string
	// Prefix begins the keys of the snapshots; it is empty or ends with a slash.
	Prefix string
	// Credentials is called for every request: credentials may be replaced.
	Credentials func() (Credentials, error)
	// CA are the certificates that verify the service, as PEM; empty: those of the host.
	CA []byte
}

// S3 is a Storage in a bucket of an object store with the interface of Amazon S3.
type S3 struct {
	S3Options
	endpoint *url.URL
	client   *http.Client
	// pause is before the first repetition of a request; partBytes is the size of parts.
	pause     time.Duration
	partBytes int
}

var _ Storage = (*S3)(nil)

// NewS3 returns the storage in a bucket. It connects when it is used.
func NewS3(o S3Options) (*S3, error) {
	endpoint, err := url.Parse(o.Endpoint)
	if err != nil {
		return nil, err
	}
	if endpoint.Host == "" || strings.Trim(endpoint.Path, "/") != "" || endpoint.RawQuery != "" || endpoint.User != nil {
		return nil, fmt.Errorf("%q is not a URL such as https://s3.example.com", o.Endpoint)
	}
	if ip := net.ParseIP(endpoint.Hostname()); endpoint.Scheme != "https" && (endpoint.Scheme != "http" || ip == nil || !ip.IsLoopback()) {
		return nil, fmt.Errorf("%q does not begin with https://", o.Endpoint)
	}
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSHandshakeTimeout: 30 * time.Second, ResponseHeaderTimeout: 2 * time.Minute, IdleConnTimeout: time.Minute,
		MaxResponseHeaderBytes: 1 << 20, ForceAttemptHTTP2: true,
		DialContext:     (&net.Dialer{Timeout: 30 * time.Second}).DialContext,
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
	}
	if len(o.CA) > 0 {
		transport.TLSClientConfig.RootCAs = x509.NewCertPool()
		if !transport.TLSClientConfig.RootCAs.AppendCertsFromPEM(o.CA) {
			return nil, errors.New("the CA file has no certificates")
		}
	}
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return &S3{S3Options: o, endpoint: endpoint, client: client, pause: retryPause, partBytes: defaultPart}, nil
}

// String implements Storage.
func (s *S3) String() string { return "s3://" + s.Bucket + "/" + s.Prefix }

// s3Request is one request to the object store.
type s3Request struct {
	method string
	// key is that of an object; empty: the request is about the bucket.
	key    string
	query  url.Values
	body   []byte
	header map[string]string
	// limit is the size of the largest response; 0: maxResponse.
	limit int64
}

// s3Error is a response that reports a failure.
type s3Error struct {
	status        int
	Code, Message string
}

// Error implements error.
func (e *s3Error) Error() string {
	switch {
	case e.status >= 300 && e.status < 400:
		return fmt.Sprintf("the object store redirects (status %d), which is not followed: the endpoint or the region is wrong", e.status)
	case e.Code == "":
		return "the object store responded with status " + strconv.Itoa(e.status)
	}
	return fmt.Sprintf("the object store responded with status %d: %s: %s", e.status, e.Code, e.Message)
}

// Is makes a missing object fs.ErrNotExist.
func (e *s3Error) Is(target error) bool {
	return target == fs.ErrNotExist && e.status == http.StatusNotFound && e.Code != "NoSuchBucket"
}

// temporary reports whether a request may succeed when it is repeated.
func (e *s3Error) temporary() bool {
	if e.status == http.StatusOK {
		return slices.Contains([]string{"InternalError", "ServiceUnavailable", "SlowDown"}, e.Code)
	}
	return e.status >= 500 || e.status == http.StatusTooManyRequests || e.status == http.StatusRequestTimeout
}

// do sends a request until it is answered, at most attempts times, and returns the response's header and body.
func (s *S3) do(ctx context.Context, r s3Request) (http.Header, []byte, error) {
	for attempt, pause := 1, s.pause; ; attempt, pause = attempt+1, 2*pause {
		header, body, err := s.once(ctx, r)
		if err == nil {
			return header, body, nil
		}
		var refused *s3Error
		if errors.As(err, &refused) && !refused.temporary() || attempt == attempts || ctx.Err() != nil {
			return nil, nil, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
}

func (s *S3) once(ctx context.Context, r s3Request) (http.Header, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	at := *s.endpoint
	at.Path = "/" + s.Bucket
	if r.key != "" {
		at.Path += "/" + r.key
	}
	at.RawPath = encodePath(at.Path)
	at.RawQuery = strings.ReplaceAll(r.query.Encode(), "+", "%20")
	request, err := http.NewRequestWithContext(ctx, r.method, at.String(), bytes.NewReader(r.body))
	if err != nil {
		return nil, nil, err
	}
	for name, value := range r.header {
		request.Header.Set(name, value)
	}
	credentials, err := s.Credentials()
	if err != nil {
		return nil, nil, err
	}
	credentials.sign(request, s.Region, sha256Hex(r.body), time.Now())
	response, err := s.client.Do(request)
	if err != nil {
		return nil, nil, err
	}
	defer response.Body.Close()
	limit := r.limit
	if limit == 0 || response.StatusCode >= 300 {
		limit = maxResponse
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, limit+1))
	if err != nil {
		return nil, nil, err
	}
	if int64(len(body)) > limit {
		return nil, nil, fmt.Errorf("the object store responded with more than %d bytes", limit)
	}
	if response.StatusCode >= 300 {
		failure := &s3Error{status: response.StatusCode}
		_ = xml.Unmarshal(body, failure) // other servers explain nothing
		return nil, nil, failure
	}
	if r.method == http.MethodPost {
		if err := failureOf(body); err != nil {
			return nil, nil, err
		}
	}
	return response.Header, body, nil
}

// failureOf is the failure that the response to a POST reports, although its status is 200: the store sends that before it has completed an upload.
func failureOf(body []byte) error {
	result := struct {
		XMLName xml.Name
		s3Error
	}{s3Error: s3Error{status: http.StatusOK}}
	if err := xml.Unmarshal(body, &result); err != nil {
		return fmt.Errorf("read the response of the object store: %w", err)
	}
	if result.XMLName.Local == "Error" {
		return &result.s3Error
	}
	return nil
}

// Put implements Storage. A snapshot of one part is written by one request, a larger one by a multipart upload, which is invisible until it is completed.
func (s *S3) Put(ctx context.Context, name string, content io.Reader) error {
	if err := checkName(name); err != nil {
		return err
	}
	part := make([]byte, s.partBytes)
	n, err := io.ReadFull(content, part)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		err = s.putObject(ctx, s.Prefix+name, part[:n])
	case err == nil:
		err = s.upload(ctx, s.Prefix+name, part, content)
	}
	if err != nil {
		return fmt.Errorf("write snapshot to %s: %w", s, err)
	}
	return nil
}

// putObject writes an object with one request. Unless the store refused it, the object may have been written although no response said so.
func (s *S3) putObject(ctx context.Context, key string, body []byte) error {
	_, _, err := s.do(ctx, s3Request{method: http.MethodPut, key: key, body: body})
	var refused *s3Error
	if err == nil || errors.As(err, &refused) && !refused.temporary() {
		return err
	}
	return errors.Join(err, s.discard(ctx, key, nil))
}

// discard deletes an object, or with the ID of an upload its parts, although ctx may be done.
func (s *S3) discard(ctx context.Context, key string, id url.Values) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), discardTimeout)
	defer cancel()
	_, _, err := s.do(ctx, s3Request{method: http.MethodDelete, key: key, query: id})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// completedPart is a part of an upload, as the request that completes it lists them.
type completedPart struct {
	PartNumber int
	ETag       string
}

// abortStale aborts the uploads of snapshots that processes have left that ended early: their parts are paid for. A store that does not list them, or
// not for these credentials, has to abort them by a rule of its own.
func (s *S3) abortStale(ctx context.Context, now time.Time) {
	_, body, err := s.once(ctx, s3Request{method: http.MethodGet, query: url.Values{"uploads": {""}, "prefix": {s.Prefix}}})
	if err != nil {
		return
	}
	var page struct {
		Upload []struct {
			Key       string
			UploadID  string `xml:"UploadId"`
			Initiated time.Time
		}
	}
	if xml.Unmarshal(body, &page) != nil {
		return
	}
	for _, u := range page.Upload {
		name, ok := strings.CutPrefix(u.Key, s.Prefix)
		if !ok || checkName(name) != nil || now.Sub(u.Initiated) < staleAfter {
			continue
		}
		if _, _, err := s.once(ctx, s3Request{method: http.MethodDelete, key: u.Key, query: url.Values{"uploadId": {u.UploadID}}}); err != nil {
			return
		}
	}
}

// upload writes an object in parts: the first, and the rest of content, with the same memory.
func (s *S3) upload(ctx context.Context, key string, part []byte, content io.Reader) error {
	s.abortStale(ctx, time.Now())
	_, body, err := s.do(ctx, s3Request{method: http.MethodPost, key: key, query: url.Values{"uploads": {""}}})
	if err != nil {
		return err
	}
	var created struct {
		UploadID string `xml:"UploadId"`
	}
	if err := xml.Unmarshal(body, &created); err != nil || created.UploadID == "" {
		return errors.Join(errors.New("the object store returned no upload ID"), err)
	}
	id := url.Values{"uploadId": {created.UploadID}}
	parts, err := s.uploadParts(ctx, key, created.UploadID, part, content)
	if err != nil {
		return errors.Join(err, s.discard(ctx, key, id)) // the parts would be stored, and paid, until the upload is aborted
	}
	if err := s.complete(ctx, key, id, parts); err != nil {
		// A completion whose response was lost has made the object, and the next attempt finds no upload.
		return errors.Join(err, s.discard(ctx, key, id), s.discard(ctx, key, nil))
	}
	return nil
}

func (s *S3) uploadParts(ctx context.Context, key, id string, part []byte, content io.Reader) ([]completedPart, error) {
	var parts []completedPart
	for n := len(part); n > 0; {
		if len(parts) == maxParts {
			return nil, fmt.Errorf("the snapshot is larger than %d bytes", int64(maxParts)*int64(s.partBytes))
		}
		number := len(parts) + 1
		header, _, err := s.do(ctx, s3Request{
			method: http.MethodPut, key: key, query: url.Values{"partNumber": {strconv.Itoa(number)}, "uploadId": {id}}, body: part[:n],
		})
		if err != nil {
			return nil, err
		}
		parts = append(parts, completedPart{PartNumber: number, ETag: header.Get("ETag")})
		n, err = io.ReadFull(content, part)
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, err
		}
	}
	return parts, nil
}

// complete makes an object of the parts.
func (s *S3) complete(ctx context.Context, key string, id url.Values, parts []completedPart) error {
	body, err := xml.Marshal(struct {
		XMLName xml.Name        `xml:"CompleteMultipartUpload"`
		Parts   []completedPart `xml:"Part"`
	}{Parts: parts})
	if err != nil {
		return err
	}
	_, _, err = s.do(ctx, s3Request{method: http.MethodPost, key: key, query: id, body: body})
	return err
}

// Open implements Storage.
func (s *S3) Open(ctx context.Context, name string) (io.ReadCloser, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	object := &s3Object{ctx: ctx, storage: s, key: s.Prefix + name}
	// An object that does not exist is an error of Open, not of the first read.
	if err := object.fetch(); err != nil {
		return nil, fmt.Errorf("read snapshot from %s: %w", s, err)
	}
	return object, nil
}

// s3Object reads an object in parts.
type s3Object struct {
	ctx     context.Context
	storage *S3
	key     string
	etag    string // of the first part: the others are of the same object
	offset  int64  // of the next part
	size    int64  // of the object, known after the first part
	part    []byte // what is left of the current part
}

// Read implements io.Reader.
func (o *s3Object) Read(to []byte) (int, error) {
	if len(o.part) == 0 {
		if o.offset >= o.size {
			return 0, io.EOF
		}
		if err := o.fetch(); err != nil {
			return 0, fmt.Errorf("read snapshot from %s: %w", o.storage, err)
		}
	}
	n := copy(to, o.part)
	o.part = o.part[n:]
	return n, nil
}

// Close implements io.Closer.
func (o *s3Object) Close() error {
	o.part, o.offset, o.size = nil, 0, 0
	return nil
}

// fetch reads the next part.
func (o *s3Object) fetch() error {
	limit := int64(o.storage.partBytes)
	headers := map[string]string{"Range": fmt.Sprintf("bytes=%d-%d", o.offset, o.offset+limit-1)}
	if o.etag != "" {
		headers["If-Match"] = o.etag
	}
	header, body, err := o.storage.do(o.ctx, s3Request{method: http.MethodGet, key: o.key, header: headers, limit: limit})
	if err != nil {
		return err
	}
	first, total, err := parseContentRange(header.Get("Content-Range"))
	if err != nil {
		return err
	}
	if first != o.offset || len(body) == 0 || o.size != 0 && total != o.size || first+int64(len(body)) > total {
		return fmt.Errorf("the object store sent %d bytes of range %q, requested was %s", len(body), header.Get("Content-Range"), headers["Range"])
	}
	o.etag, o.size, o.part = header.Get("ETag"), total, body
	o.offset += int64(len(body))
	return nil
}

// parseContentRange parses a header such as "bytes 0-99/1234".
func parseContentRange(text string) (first, total int64, err error) {
	var last int64
	if n, err := fmt.Sscanf(text, "bytes %d-%d/%d", &first, &last, &total); n != 3 || err != nil || first < 0 || total <= 0 {
		return 0, 0, fmt.Errorf("the object store sent no part of an object, but range %q", text)
	}
	return first, total, nil
}

// listedObjects is one page of a list.
type listedObjects struct {
	IsTruncated           bool
	NextContinuationToken string
	Contents              []struct {
		Key  string
		Size int64
	}
}

// List implements Storage.
func (s *S3) List(ctx context.Context) ([]Entry, error) {
	query := url.Values{"list-type": {"2"}, "prefix": {s.Prefix}}
	var entries []Entry
	for range maxListedPages {
		_, body, err := s.do(ctx, s3Request{method: http.MethodGet, query: query})
		if err != nil {
			return nil, fmt.Errorf("list snapshots in %s: %w", s, err)
		}
		var page listedObjects
		if err := xml.Unmarshal(body, &page); err != nil {
			return nil, fmt.Errorf("list snapshots in %s: %w", s, err)
		}
		for _, object := range page.Contents {
			name := strings.TrimPrefix(object.Key, s.Prefix)
			if _, created, ok := ParseName(name); ok {
				entries = append(entries, Entry{Name: name, Created: created, Bytes: object.Size})
			}
		}
		if !page.IsTruncated {
			sortEntries(entries)
			return entries, nil
		}
		query.Set("continuation-token", page.NextContinuationToken)
	}
	return nil, fmt.Errorf("list snapshots in %s: there are more than %d pages of objects: choose another prefix", s, maxListedPages)
}

// Delete implements Storage.
func (s *S3) Delete(ctx context.Context, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	_, _, err := s.do(ctx, s3Request{method: http.MethodDelete, key: s.Prefix + name})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete snapshot in %s: %w", s, err)
	}
	return nil
}
