package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	// maxRequest bounds the size of a request in bytes: a review has at most two objects, or one batch of a conversion.
	maxRequest = 16 << 20
	// maxRetries bounds the retries that a webhook can request with the header Retry-After.
	maxRetries = 10
	// maxErrorText bounds how much of an error response becomes part of a message.
	maxErrorText = 2048
)

// ErrResponseTooLarge is the error for a response that exceeds the client's bound.
var ErrResponseTooLarge = errors.New("the webhook's response is too large")

// Response is a response of a webhook.
type Response struct {
	StatusCode int
	Status     string
	Header     http.Header
	Body       []byte
}

// post sends one request. The error for a body larger than limit is ErrResponseTooLarge; the response then has the beginning of the body.
func post(client *http.Client, request *http.Request, limit int64) (*Response, error) {
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json, */*")
	got, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer got.Body.Close()
	body, err := io.ReadAll(io.LimitReader(got.Body, limit+1))
	if err != nil {
		return nil, fmt.Errorf("unexpected error when reading response body. Please retry. Original error: %w", err)
	}
	response := &Response{StatusCode: got.StatusCode, Status: got.Status, Header: got.Header, Body: body}
	if int64(len(body)) > limit {
		return response, fmt.Errorf("%w: it has more than %d bytes", ErrResponseTooLarge, limit)
	}
	return response, nil
}

// rejectRedirects returns a redirect as the response: following it would send the request and the credentials to another server.
func rejectRedirects(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Review posts a review and returns the body of the response. A response that is not a success is an error, a StatusError if possible. The
// webhook gets the time that is left in the parameter timeout.
func (c *Client) Review(ctx context.Context, body []byte) ([]byte, error) {
	if len(body) > maxRequest {
		return nil, fmt.Errorf("the request has %d bytes; the limit is %d", len(body), maxRequest)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	shared, err := c.transport()
	if err != nil {
		return nil, err
	}
	defer shared.release()
	client := &http.Client{Transport: shared, CheckRedirect: rejectRedirects}
	for retries := 0; ; retries++ {
		response, err := c.postReview(ctx, client, body)
		if err != nil {
			return nil, err
		}
		if response.StatusCode >= http.StatusOK && response.StatusCode <= http.StatusPartialContent {
			return response.Body, nil
		}
		seconds, retry := retryAfter(response)
		if !retry || retries == maxRetries {
			return nil, response.Err()
		}
		select {
		case <-time.After(time.Duration(seconds) * time.Second):
		case <-ctx.Done():
			return nil, response.Err()
		}
	}
}

func (c *Client) postReview(ctx context.Context, client *http.Client, body []byte) (*Response, error) {
	u := c.url
	if deadline, ok := ctx.Deadline(); ok {
		if left := time.Until(deadline); left > 0 {
			u.RawQuery = "timeout=" + roundUp(left).String()
		}
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	return post(client, request, c.maxResponse)
}

// roundUp rounds up to whole seconds.
func roundUp(d time.Duration) time.Duration {
	if whole := d.Truncate(time.Second); whole != d {
		return whole + time.Second
	}
	return d
}

// retryAfter is the number of seconds after which an overloaded webhook wants to be called again.
func retryAfter(response *Response) (seconds int, ok bool) {
	if response.StatusCode != http.StatusTooManyRequests && response.StatusCode/100 != 5 {
		return 0, false
	}
	seconds, err := strconv.Atoi(response.Header.Get("Retry-After"))
	return max(seconds, 0), err == nil
}

// Err is the error of a response that is not a success: the Status in its body, or one for its code. Its text is bounded.
func (r *Response) Err() error {
	if r.StatusCode/100 == 3 {
		return fmt.Errorf("the webhook responded with status %s, and redirects are not followed", r.Status)
	}
	var status metav1.Status
	if json.Unmarshal(r.Body, &status) == nil && status.Kind == "Status" && status.Status != metav1.StatusSuccess {
		status.Message = boundedText(status.Message)
		return apierrors.FromObject(&status)
	}
	message := "unknown"
	if strings.HasPrefix(r.Header.Get("Content-Type"), "text/") {
		message = strings.TrimSpace(boundedText(string(r.Body)))
	}
	seconds, _ := retryAfter(r)
	return apierrors.NewGenericServerResponse(r.StatusCode, http.MethodPost, schema.GroupResource{}, "", message, seconds, true)
}

// boundedText is the beginning of a text.
func boundedText(text string) string {
	if len(text) <= maxErrorText {
		return text
	}
	return strings.ToValidUTF8(text[:maxErrorText], "")
}
