package backup

import (
	"bufio"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"
)

// Credentials sign the requests to an object store.
type Credentials struct {
	AccessKeyID, SecretAccessKey string
	// SessionToken belongs to temporary credentials; otherwise it is empty.
	SessionToken string
}

// maxCredentialsBytes is the size of the largest file of credentials.
const maxCredentialsBytes = 64 << 10

// ReadCredentials reads the credentials of the profile default from a file in the format of Amazon's command line.
func ReadCredentials(path string) (Credentials, error) {
	var c Credentials
	file, err := os.Open(path)
	if err != nil {
		return c, err
	}
	defer file.Close()
	profile := ""
	for lines := bufio.NewScanner(io.LimitReader(file, maxCredentialsBytes)); lines.Scan(); {
		line := strings.TrimSpace(lines.Text())
		if strings.HasPrefix(line, "[") && strings.HasSuffix(line, "]") {
			profile = strings.TrimSpace(line[1 : len(line)-1])
		}
		name, value, ok := strings.Cut(line, "=")
		if !ok || profile != "default" || strings.HasPrefix(line, "#") || strings.HasPrefix(line, ";") {
			continue
		}
		switch value = strings.TrimSpace(value); strings.TrimSpace(name) {
		case "aws_access_key_id":
			c.AccessKeyID = value
		case "aws_secret_access_key":
			c.SecretAccessKey = value
		case "aws_session_token":
			c.SessionToken = value
		}
	}
	if c.AccessKeyID == "" || c.SecretAccessKey == "" {
		return c, fmt.Errorf("%s has no aws_access_key_id and aws_secret_access_key below [default]", path)
	}
	return c, nil
}

// sign signs a request with AWS Signature Version 4: its method, path, query, host and all headers that are set. The path must be encoded as
// encodePath does it, and the query as url.Values does. hash is the SHA-256 of the body.
func (c Credentials) sign(r *http.Request, region, hash string, now time.Time) {
	now = now.UTC()
	r.Header.Set("X-Amz-Date", now.Format("20060102T150405Z"))
	r.Header.Set("X-Amz-Content-Sha256", hash)
	if c.SessionToken != "" {
		r.Header.Set("X-Amz-Security-Token", c.SessionToken)
	}
	headers := map[string]string{"host": r.URL.Host}
	for name, values := range r.Header {
		headers[strings.ToLower(name)] = strings.TrimSpace(strings.Join(values, ","))
	}
	names := make([]string, 0, len(headers))
	for name := range headers {
		names = append(names, name)
	}
	slices.Sort(names)
	var canonical strings.Builder
	canonical.WriteString(r.Method + "\n" + r.URL.EscapedPath() + "\n" + strings.ReplaceAll(r.URL.Query().Encode(), "+", "%20") + "\n")
	for _, name := range names {
		canonical.WriteString(name + ":" + headers[name] + "\n")
	}
	signed := strings.Join(names, ";")
	canonical.WriteString("\n" + signed + "\n" + hash)
	scope := now.Format("20060102") + "/" + region + "/s3/aws4_request"
	text := "AWS4-HMAC-SHA256\n" + now.Format("20060102T150405Z") + "\n" + scope + "\n" + sha256Hex([]byte(canonical.String()))
	key := []byte("AWS4" + c.SecretAccessKey)
	for _, part := range []string{now.Format("20060102"), region, "s3", "aws4_request"} {
		key = hmacSHA256(key, part)
	}
	r.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential="+c.AccessKeyID+"/"+scope+", SignedHeaders="+signed+
		", Signature="+hex.EncodeToString(hmacSHA256(key, text)))
}

func hmacSHA256(key []byte, text string) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(text))
	return mac.Sum(nil)
}

func sha256Hex(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// encodePath encodes the segments of a path as signatures require it: everything but letters, digits and -_.~ is escaped.
func encodePath(path string) string {
	segments := strings.Split(path, "/")
	for i, segment := range segments {
		segments[i] = strings.ReplaceAll(url.QueryEscape(segment), "+", "%20")
	}
	return strings.Join(segments, "/")
}
