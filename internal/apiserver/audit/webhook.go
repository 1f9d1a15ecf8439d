package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// webhookTries and the growing delays between them bound how long a batch is tried for.
	webhookTries   = 5
	webhookTimeout = 30 * time.Second
	// webhookSends is how many batches are on their way at once.
	webhookSends = 8
	// webhookGrace is how long the server waits at its end for the service to take what is left.
	webhookGrace = 5 * time.Second
)

var (
	listHead = []byte(`{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{},"items":[`)
	listTail = []byte("]}")
)

// webhook sends lists of events to a service.
type webhook struct {
	auditor *Auditor
	url     string
	client  *http.Client
	backoff time.Duration
	mode    string
	queue   *queue
	// sending bounds the batches under way, ctx and cancel end them.
	sending errgroup.Group
	ctx     context.Context
	cancel  context.CancelFunc
}

func newWebhook(c Webhook, a *Auditor) (*webhook, error) {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: c.Kubeconfig}, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("audit webhook: %w", err)
	}
	if u, err := url.Parse(config.Host); err != nil || u.Scheme != "https" && u.Scheme != "http" {
		return nil, fmt.Errorf("audit webhook: %s names no URL", c.Kubeconfig)
	}
	config.Timeout = webhookTimeout
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("audit webhook: %w", err)
	}
	// A service that sends us elsewhere would send the events elsewhere.
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	w := &webhook{auditor: a, url: config.Host, client: client, backoff: c.InitialBackoff, mode: c.Delivery.Mode}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.sending.SetLimit(webhookSends)
	w.queue = newQueue(&c.Delivery, c.Delivery.MaxWait, ',')
	w.queue.keeps = true
	w.queue.lost = func(events int, err error) { a.lost("buffered", events, err) }
	w.queue.deliver = func(events []byte, count int) {
		w.sending.Go(func() error {
			w.post(events[:len(events)-1], count)
			return nil
		})
	}
	return w, nil
}

func (w *webhook) send(line []byte) bool {
	if w.mode == ModeBatch {
		w.queue.put(line)
		return true
	}
	return w.post(line, 1) || w.mode == ModeBlocking
}

func (w *webhook) run(ctx context.Context) error {
	defer w.cancel()
	w.queue.run(ctx)
	grace := time.AfterFunc(webhookGrace, w.cancel)
	defer grace.Stop()
	return w.sending.Wait()
}

// post sends events, separated by commas, and tries again after a while when the service does not take them.
func (w *webhook) post(events []byte, count int) bool {
	body := bytes.Join([][]byte{listHead, events, listTail}, nil)
	delay := w.backoff
	for try := 1; ; try++ {
		err := w.postOnce(body)
		if err == nil {
			return true
		}
		if try == webhookTries || w.ctx.Err() != nil {
			w.auditor.lost("webhook", count, err)
			return false
		}
		select {
		case <-time.After(delay + time.Duration(rand.Float64()*0.2*float64(delay))):
		case <-w.ctx.Done():
		}
		delay = delay * 3 / 2
	}
}

func (w *webhook) postOnce(body []byte) error {
	request, err := http.NewRequestWithContext(w.ctx, http.MethodPost, w.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json, */*")
	response, err := w.client.Do(request)
	if err != nil {
		return fmt.Errorf("send to the audit webhook: %w", err)
	}
	_, err = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<20))
	if err = errors.Join(err, response.Body.Close()); err != nil {
		return fmt.Errorf("read the audit webhook's answer: %w", err)
	}
	if response.StatusCode < 200 || response.StatusCode > 299 {
		return fmt.Errorf("the audit webhook answered %s", response.Status)
	}
	return nil
}
