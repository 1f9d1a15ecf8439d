package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"

	webhookclient "skiff/internal/webhook"
)

const (
	// webhookTries is the number of attempts for a batch, with a growing delay between them.
	webhookTries   = 5
	webhookTimeout = 30 * time.Second
	// webhookMaxResponse bounds how much of a response is read.
	webhookMaxResponse = 1 << 20
	// webhookConcurrency is the maximum number of batches in flight.
	webhookConcurrency = 8
	// webhookGrace is how long shutdown waits for the remaining batches.
	webhookGrace = 5 * time.Second
)

var (
	listPrefix = []byte(`{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{},"items":[`)
	listSuffix = []byte("]}")
)

// webhook sends EventLists to a remote server.
type webhook struct {
	auditor *Auditor
	client  *webhookclient.KubeconfigClient
	backoff time.Duration
	mode    string
	queue   *queue
	// sending limits the batches in flight, cancel aborts them.
	sending errgroup.Group
	ctx     context.Context
	cancel  context.CancelFunc
}

func newWebhook(c Webhook, a *Auditor) (*webhook, error) {
	client, err := webhookclient.NewKubeconfigClient(c.KubeconfigFile, webhookTimeout, webhookMaxResponse, c.Dial)
	if err != nil {
		return nil, fmt.Errorf("audit webhook: %w", err)
	}
	w := &webhook{auditor: a, client: client, backoff: c.InitialBackoff, mode: c.BackendOptions.Mode}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.sending.SetLimit(webhookConcurrency)
	w.queue = newQueue(&c.BackendOptions, c.BackendOptions.MaxWait, ',')
	w.queue.retains = true
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

// post sends comma-separated events and retries with backoff.
func (w *webhook) post(events []byte, count int) bool {
	body := bytes.Join([][]byte{listPrefix, events, listSuffix}, nil)
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
	response, err := w.client.Post(w.ctx, body)
	// Nobody reads the response.
	if err != nil && !errors.Is(err, webhookclient.ErrResponseTooLarge) {
		return fmt.Errorf("call the audit webhook: %w", err)
	}
	if response.StatusCode < 200 || response.StatusCode > 299 {
		return fmt.Errorf("the audit webhook returned status %s", response.Status)
	}
	return nil
}
