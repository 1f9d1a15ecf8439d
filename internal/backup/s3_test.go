package backup

import (
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"encoding/pem"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

var testCredentials = Credentials{AccessKeyID: "AKIAIOSFODNN7EXAMPLE", SecretAccessKey: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"}

// The examples of Amazon's documentation of signatures.
func TestSignature(t *testing.T) {
	now := time.Date(2013, 5, 24, 0, 0, 0, 0, time.UTC)
	const empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	for _, test := range []struct {
		method, url, hash string
		header            map[string]string
		want              string
	}{
		{"GET", "https://examplebucket.s3.amazonaws.com/test.txt", empty, map[string]string{"Range": "bytes=0-9"},
			"SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"},
		{"PUT", "https://examplebucket.s3.amazonaws.com/" + encodePath("test$file.text"), "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072",
			map[string]string{"Date": "Fri, 24 May 2013 00:00:00 GMT", "x-amz-storage-class": "REDUCED_REDUNDANCY"},
			"SignedHeaders=date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class, Signature=98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"},
		{"GET", "https://examplebucket.s3.amazonaws.com/?lifecycle=", empty, nil,
			"SignedHeaders=host;x-amz-content-sha256;x-amz-date, Signature=fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"},
		{"GET", "https://examplebucket.s3.amazonaws.com/?prefix=J&max-keys=2", empty, nil,
			"SignedHeaders=host;x-amz-content-sha256;x-amz-date, Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"},
	} {
		r, err := http.NewRequest(test.method, test.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range test.header {
			r.Header.Set(name, value)
		}
		testCredentials.sign(r, "us-east-1", test.hash, now)
		want := "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, " + test.want
		if got := r.Header.Get("Authorization"); got != want {
			t.Errorf("%s %s:\n%s, want\n%s", test.method, test.url, got, want)
		}
	}
}

func TestReadCredentials(t *testing.T) {
	for _, test := range []struct {
		text string
		want Credentials
		bad  bool
	}{
		{text: "[default]\naws_access_key_id = A\naws_secret_access_key=S\n", want: Credentials{"A", "S", ""}},
		{text: "# c=1\n[other]\naws_access_key_id=B\naws_secret_access_key=T\n[default]\n;x=y\naws_access_key_id=A\naws_secret_access_key=S=\naws_session_token=N\n",
			want: Credentials{"A", "S=", "N"}},
		{text: "aws_access_key_id=A\naws_secret_access_key=S\n", bad: true},
		{text: "[default]\naws_access_key_id=A\n", bad: true},
		{text: "", bad: true},
	} {
		path := filepath.Join(t.TempDir(), "credentials")
		if err := os.WriteFile(path, []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadCredentials(path); (err != nil) != test.bad || !test.bad && got != test.want {
			t.Errorf("%q: %+v, %v", test.text, got, err)
		}
	}
}

// bucket is an object store with one bucket. It refuses requests that are not signed correctly.
type bucket struct {
	t        *testing.T
	pageSize int
	// intercept may respond to a request instead.
	intercept func(w http.ResponseWriter, r *http.Request) bool

	mu       sync.Mutex
	objects  map[string][]byte
	uploads  map[string]map[string][]byte // parts by upload and number
	listed   string                       // the response to a request for the uploads
	requests []string
}

const bucketPath = "/backups"

// ServeHTTP implements http.Handler.
func (b *bucket) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests = append(b.requests, r.Method+" "+r.URL.RequestURI())
	if b.intercept != nil && b.intercept(w, r) {
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if !b.isSigned(r, body) {
		b.fail(w, http.StatusForbidden, "SignatureDoesNotMatch")
		return
	}
	key, _ := strings.CutPrefix(r.URL.Path, bucketPath)
	key = strings.TrimPrefix(key, "/")
	query := r.URL.Query()
	switch id := query.Get("uploadId"); {
	case key == "" && r.Method == http.MethodGet && query.Has("uploads"):
		if query.Get("prefix") != "my cluster/" || b.listed == "" {
			b.fail(w, http.StatusNotImplemented, "NotImplemented")
			return
		}
		fmt.Fprint(w, b.listed)
	case key == "" && r.Method == http.MethodGet:
		b.list(w, query.Get("prefix"), query.Get("continuation-token"))
	case query.Has("uploads") && r.Method == http.MethodPost:
		id := fmt.Sprintf("upload %d+/", len(b.uploads))
		b.uploads[id] = map[string][]byte{}
		fmt.Fprintf(w, "<InitiateMultipartUploadResult><UploadId>%s</UploadId></InitiateMultipartUploadResult>", id)
	case id != "" && b.uploads[id] == nil:
		b.fail(w, http.StatusNotFound, "NoSuchUpload")
	case id != "" && r.Method == http.MethodPut:
		b.uploads[id][query.Get("partNumber")] = body
		w.Header().Set("ETag", etag(body))
	case id != "" && r.Method == http.MethodPost:
		b.complete(w, key, id, body)
	case id != "" && r.Method == http.MethodDelete:
		delete(b.uploads, id)
	case r.Method == http.MethodPut:
		b.objects[key] = body
	case r.Method == http.MethodDelete:
		delete(b.objects, key)
		w.WriteHeader(http.StatusNoContent)
	case b.objects[key] == nil:
		b.fail(w, http.StatusNotFound, "NoSuchKey")
	default:
		w.Header().Set("ETag", etag(b.objects[key]))
		http.ServeContent(w, r, key, time.Time{}, bytes.NewReader(b.objects[key]))
	}
}

func (b *bucket) fail(w http.ResponseWriter, status int, code string) {
	w.WriteHeader(status)
	fmt.Fprintf(w, "<Error><Code>%s</Code><Message>the message</Message></Error>", code)
}

func etag(data []byte) string {
	sum := md5.Sum(data)
	return `"` + hex.EncodeToString(sum[:]) + `"`
}

// isSigned checks a signature by making it again from the headers that are signed.
func (b *bucket) isSigned(r *http.Request, body []byte) bool {
	signed, _, ok := strings.Cut(strings.TrimPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 "), ", Signature=")
	_, names, found := strings.Cut(signed, "SignedHeaders=")
	now, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	if !ok || !found || err != nil || time.Since(now).Abs() > 15*time.Minute {
		return false
	}
	copied, err := http.NewRequest(r.Method, "http://"+r.Host+r.URL.RequestURI(), nil)
	if err != nil {
		return false
	}
	for name := range strings.SplitSeq(names, ";") {
		if name != "host" {
			copied.Header[http.CanonicalHeaderKey(name)] = r.Header.Values(name)
		}
	}
	testCredentials.sign(copied, "eu-test-1", sha256Hex(body), now)
	return copied.Header.Get("Authorization") == r.Header.Get("Authorization")
}

func (b *bucket) list(w io.Writer, prefix, after string) {
	var keys []string
	for key := range b.objects {
		if strings.HasPrefix(key, prefix) && key > after {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	fmt.Fprint(w, "<ListBucketResult>")
	for _, key := range keys[:min(len(keys), b.pageSize)] {
		fmt.Fprintf(w, "<Contents><Key>%s</Key><Size>%d</Size></Contents>", key, len(b.objects[key]))
	}
	if len(keys) > b.pageSize {
		fmt.Fprintf(w, "<IsTruncated>true</IsTruncated><NextContinuationToken>%s</NextContinuationToken>", keys[b.pageSize-1])
	}
	fmt.Fprint(w, "</ListBucketResult>")
}

func (b *bucket) complete(w http.ResponseWriter, key, id string, body []byte) {
	var request struct {
		Part []completedPart
	}
	if err := xml.Unmarshal(body, &request); err != nil {
		b.fail(w, http.StatusBadRequest, "MalformedXML")
		return
	}
	var object []byte
	for i, part := range request.Part {
		data := b.uploads[id][fmt.Sprint(i+1)]
		if part.PartNumber != i+1 || part.ETag != etag(data) {
			fmt.Fprint(w, "<Error><Code>InvalidPart</Code></Error>") // with status 200
			return
		}
		object = append(object, data...)
	}
	delete(b.uploads, id)
	b.objects[key] = object
	fmt.Fprint(w, "<CompleteMultipartUploadResult/>")
}

// newBucket starts an object store and returns it with its client.
func newBucket(t *testing.T) (*bucket, *S3) {
	b := &bucket{t: t, pageSize: 2, objects: map[string][]byte{}, uploads: map[string]map[string][]byte{}}
	server := httptest.NewTLSServer(b)
	t.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	storage, err := NewS3(S3Options{
		Endpoint: server.URL, Region: "eu-test-1", Bucket: "backups", Prefix: "my cluster/", CA: ca,
		Credentials: func() (Credentials, error) { return testCredentials, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	storage.pause, storage.partBytes = time.Microsecond, 1000
	t.Cleanup(storage.client.CloseIdleConnections)
	return b, storage
}

func TestS3(t *testing.T) {
	b, storage := newBucket(t)
	b.objects["my cluster/other"], b.objects[newName("manual", "elsewhere", at(1))] = []byte("x"), []byte("x")
	testStorage(t, storage)
	if len(b.uploads) != 0 {
		t.Errorf("%d uploads were neither completed nor aborted", len(b.uploads))
	}
	if storage.String() != "s3://backups/my cluster/" {
		t.Error(storage.String())
	}
}

// An upload of exactly one part, or of several, has no empty part.
func TestS3Parts(t *testing.T) {
	b, storage := newBucket(t)
	for size, puts := range map[int]int{1: 1, 999: 1, 1000: 1, 1001: 2, 2000: 2, 2500: 3} {
		b.requests = nil
		name := newName("manual", "host", at(size%60))
		content := randomBytes(size)
		if err := storage.Put(t.Context(), name, bytes.NewReader(content)); err != nil {
			t.Fatal(err)
		}
		got := 0
		for _, r := range b.requests {
			if strings.HasPrefix(r, "PUT ") {
				got++
			}
		}
		if got != puts {
			t.Errorf("%d bytes: %d parts, want %d: %v", size, got, puts, b.requests)
		}
		if back, err := readAll(t, storage, name); err != nil || !bytes.Equal(back, content) {
			t.Errorf("%d bytes: %d came back, %v", size, len(back), err)
		}
	}
}

func TestS3Retries(t *testing.T) {
	for _, test := range []struct {
		status, failures int
		want             string
		requests         int
	}{
		{http.StatusServiceUnavailable, 3, "", 4},
		{http.StatusServiceUnavailable, 4, "status 503: SlowDown: the message", 5}, // the last one deletes what may have been written
		{http.StatusTooManyRequests, 1, "", 2},
		{http.StatusForbidden, 1, "status 403: SlowDown", 1},
		{http.StatusBadRequest, 1, "status 400", 1},
	} {
		b, storage := newBucket(t)
		left := test.failures
		b.intercept = func(w http.ResponseWriter, _ *http.Request) bool {
			if left--; left < 0 {
				return false
			}
			b.fail(w, test.status, "SlowDown")
			return true
		}
		err := storage.Put(t.Context(), newName("manual", "host", at(1)), strings.NewReader("x"))
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%d times %d: %v, want %q", test.failures, test.status, err, test.want)
		}
		if len(b.requests) != test.requests {
			t.Errorf("%d times %d: %d requests, want %d", test.failures, test.status, len(b.requests), test.requests)
		}
	}
}

// A redirect must not make the client send its credentials, or a snapshot, to another server.
func TestS3FollowsNoRedirects(t *testing.T) {
	b, storage := newBucket(t)
	reached := 0
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached++ }))
	defer other.Close()
	for _, status := range []int{http.StatusMovedPermanently, http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
		b.intercept = func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Location", other.URL)
			w.WriteHeader(status)
			return true
		}
		_, err := storage.List(t.Context())
		putErr := storage.Put(t.Context(), newName("manual", "host", at(1)), strings.NewReader("x"))
		for _, err := range []error{err, putErr} {
			if err == nil || !strings.Contains(err.Error(), "redirects") {
				t.Errorf("status %d: %v", status, err)
			}
		}
	}
	if reached != 0 {
		t.Errorf("%d requests reached the other server", reached)
	}
}

// An upload that fails is aborted, and its parts are not paid for.
func TestS3AbortsUpload(t *testing.T) {
	b, storage := newBucket(t)
	b.intercept = func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Query().Get("partNumber") != "2" {
			return false
		}
		b.fail(w, http.StatusForbidden, "AccessDenied")
		return true
	}
	if err := storage.Put(t.Context(), newName("manual", "host", at(1)), bytes.NewReader(randomBytes(5000))); err == nil || !strings.Contains(err.Error(), "AccessDenied") {
		t.Errorf("error %v", err)
	}
	if len(b.uploads) != 0 || len(b.objects) != 0 {
		t.Errorf("left are %d uploads and %d objects", len(b.uploads), len(b.objects))
	}
	// A completion that fails with status 200 is a failure too.
	b.intercept = func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPost && r.URL.Query().Has("uploadId") {
			for _, parts := range b.uploads {
				parts["1"] = nil
			}
		}
		return false
	}
	if err := storage.Put(t.Context(), newName("manual", "host", at(1)), bytes.NewReader(randomBytes(5000))); err == nil || !strings.Contains(err.Error(), "InvalidPart") {
		t.Errorf("error %v", err)
	}
	if len(b.uploads) != 0 || len(b.objects) != 0 {
		t.Errorf("left are %d uploads and %d objects", len(b.uploads), len(b.objects))
	}
}

// A completion that fails with status 200 for a reason that passes is repeated.
func TestS3CompletionIsRepeated(t *testing.T) {
	for code, failures := range map[string]int{"InternalError": 3, "SlowDown": 1} {
		b, storage := newBucket(t)
		left := failures
		b.intercept = func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodPost || !r.URL.Query().Has("uploadId") || left == 0 {
				return false
			}
			left--
			fmt.Fprintf(w, "\n<Error><Code>%s</Code></Error>", code)
			return true
		}
		name, content := newName("manual", "host", at(1)), randomBytes(5000)
		if err := storage.Put(t.Context(), name, bytes.NewReader(content)); err != nil {
			t.Errorf("%d times %s: %v", failures, code, err)
			continue
		}
		if back, err := readAll(t, storage, name); err != nil || !bytes.Equal(back, content) || len(b.uploads) != 0 {
			t.Errorf("%d times %s: %d bytes came back, %v, %d uploads are left", failures, code, len(back), err, len(b.uploads))
		}
	}
}

// The uploads of snapshots that a killed process has left are aborted, but not those that go on, nor others.
func TestS3AbortsStaleUploads(t *testing.T) {
	b, storage := newBucket(t)
	upload := func(id, key string, age time.Duration) string {
		b.uploads[id] = map[string][]byte{}
		return fmt.Sprintf("<Upload><Key>%s</Key><UploadId>%s</UploadId><Initiated>%s</Initiated></Upload>", key, id, time.Now().Add(-age).UTC().Format("2006-01-02T15:04:05.000Z"))
	}
	name := newName("manual", "host", at(1))
	b.listed = "<ListMultipartUploadsResult>" + upload("recent", "my cluster/"+name, staleAfter/2) + upload("of others", "my cluster/other", 2*staleAfter) +
		upload("below", "my cluster/below/"+name, 2*staleAfter) + upload("stale", "my cluster/"+name, 2*staleAfter) + "</ListMultipartUploadsResult>"
	if err := storage.Put(t.Context(), newName("manual", "host", at(2)), bytes.NewReader(randomBytes(5000))); err != nil {
		t.Fatal(err)
	}
	if left := slices.Sorted(maps.Keys(b.uploads)); !slices.Equal(left, []string{"below", "of others", "recent"}) || len(b.objects) != 1 {
		t.Errorf("left are the uploads %v, and %d objects", left, len(b.objects))
	}
}

// After an error there is no snapshot, also if the store has written it and only the responses were lost.
func TestS3LostResponses(t *testing.T) {
	for size, method := range map[int]string{10: http.MethodPut, 2500: http.MethodPost} {
		b, storage := newBucket(t)
		written := false
		b.intercept = func(_ http.ResponseWriter, r *http.Request) bool {
			if r.Method != method || method == http.MethodPost && !r.URL.Query().Has("uploadId") || written && method == http.MethodPost {
				return false
			}
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			key := strings.TrimPrefix(r.URL.Path, bucketPath+"/")
			if method == http.MethodPut {
				b.objects[key] = body
			} else {
				b.complete(httptest.NewRecorder(), key, r.URL.Query().Get("uploadId"), body)
			}
			written = b.objects[key] != nil
			panic(http.ErrAbortHandler)
		}
		if err := storage.Put(t.Context(), newName("manual", "host", at(1)), bytes.NewReader(randomBytes(size))); err == nil {
			t.Errorf("%d bytes: no error", size)
		}
		if !written || len(b.objects) != 0 || len(b.uploads) != 0 {
			t.Errorf("%d bytes: written %v, left are %d objects and %d uploads", size, written, len(b.objects), len(b.uploads))
		}
	}
}

// An object that is replaced while it is read is not read as a mixture of both.
func TestS3ObjectReplaced(t *testing.T) {
	b, storage := newBucket(t)
	name := newName("manual", "host", at(1))
	b.objects["my cluster/"+name] = randomBytes(3000)
	opened, err := storage.Open(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	b.mu.Lock()
	b.objects["my cluster/"+name] = randomBytes(3001)
	b.mu.Unlock()
	var refused *s3Error
	if _, err := io.ReadAll(opened); !errors.As(err, &refused) || refused.status != http.StatusPreconditionFailed {
		t.Errorf("error %v", err)
	}
}

func TestNewS3(t *testing.T) {
	for endpoint, valid := range map[string]bool{
		"https://s3.example.com": true, "https://s3.example.com:9000/": true, "http://127.0.0.1:9000": true, "http://[::1]:9000": true,
		"http://s3.example.com": false, "http://10.0.0.1:9000": false, "s3.example.com": false, "https://user:pass@s3.example.com": false,
		"https://s3.example.com/path": false, "ftp://127.0.0.1": false, "": false,
	} {
		if _, err := NewS3(S3Options{Endpoint: endpoint}); (err == nil) != valid {
			t.Errorf("%q: %v", endpoint, err)
		}
	}
	if _, err := NewS3(S3Options{Endpoint: "https://s3.example.com", CA: []byte("x")}); err == nil {
		t.Error("a CA file without certificates is accepted")
	}
}
