package aggregation

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"

	"skiff/internal/webhook"
)

const (
	// checkAttempts is how many requests a check sends at the same time. They go to endpoints picked at random, and one success is enough.
	checkAttempts = 5
	// checkTimeout bounds a check.
	checkTimeout = 5 * time.Second
)

// Check requests the discovery of an APIService that names a Service. The error is the message of its condition.
func (a *Aggregation) Check(ctx context.Context, service *apiregistrationv1.APIService) error {
	over, err := a.transportFor(service)
	if err != nil {
		return err
	}
	defer over.release()
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	path := discoveryPath(helper.APIServiceNameToGroupVersion(service.Name))
	results := make(chan error, checkAttempts)
	for range checkAttempts {
		running.Go(func() { results <- probe(ctx, over.ServiceTransport, path) })
	}
	for range checkAttempts {
		if err = <-results; err == nil {
			return nil
		}
	}
	return err
}

// usedTransport is a transport, and what ends its use.
type usedTransport struct {
	*webhook.ServiceTransport
	release func()
}

// transportFor returns the transport of the registered APIService, or another one if this is not its specification.
func (a *Aggregation) transportFor(service *apiregistrationv1.APIService) (usedTransport, error) {
	if b := a.find(service.Name); b != nil && b.transport != nil && equality.Semantic.DeepEqual(b.spec, service.Spec) {
		return usedTransport{b.transport, func() {}}, nil
	}
	own, err := a.newTransport(&service.Spec)
	if err != nil {
		return usedTransport{}, err
	}
	return usedTransport{own, own.Close}, nil
}

// probe sends one request.
func probe(ctx context.Context, over *webhook.ServiceTransport, path string) error {
	ctx, host, err := over.Resolve(ctx)
	if err != nil {
		return err
	}
	location := (&url.URL{Scheme: "https", Host: host, Path: path}).String()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, location, nil)
	if err != nil {
		return err
	}
	setUser(r, &aggregatorUser)
	client := &http.Client{Transport: over, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.Do(r)
	if err != nil {
		return fmt.Errorf("failing or missing response from %s: %w", location, err)
	}
	response.Body.Close()
	if response.StatusCode/100 != 2 {
		return fmt.Errorf("failing or missing response from %s: bad status from %s: %d", location, location, response.StatusCode)
	}
	return nil
}
