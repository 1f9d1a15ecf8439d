// Package ask puts questions to a scheduler, wherever it runs: why a pod is where it is or nowhere, and where the pods of a
// manifest would go if it were applied. It speaks as the user whose kubeconfig it is given, and with no other rights.
//
// A question goes to the API server, which answers itself or hands it on, or straight to a scheduler that runs alone. Before it
// asks where pods would go, the API server is asked what it would make of them (a dry run of creating them): defaults,
// priority, limits and everything else admission does are then part of the answer, and so is what it would refuse.
package ask

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"skiff/internal/scheduler"
	"skiff/internal/scheduler/decision"
)

// Client asks as one user.
type Client struct {
	server, scheduler rest.Interface
}

// Elsewhere says where to find a scheduler that runs alone, and by whose certificates to know it.
type SchedulerAddress struct {
	URL, CAFile string
}

// New makes a client of the API server that config names. A scheduler with a URL is asked directly.
func New(config *rest.Config, address SchedulerAddress) (*Client, error) {
	server, err := restClient(rest.CopyConfig(config))
	if err != nil {
		return nil, fmt.Errorf("make client of the API server: %w", err)
	}
	if address.URL == "" {
		return &Client{server: server, scheduler: server}, nil
	}
	directConfig := rest.CopyConfig(config)
	directConfig.Host, directConfig.APIPath, directConfig.ServerName = address.URL, "", ""
	if address.CAFile != "" {
		directConfig.CAFile, directConfig.CAData, directConfig.Insecure = address.CAFile, nil, false
	}
	direct, err := restClient(directConfig)
	if err != nil {
		return nil, fmt.Errorf("make client of the scheduler: %w", err)
	}
	return &Client{server: server, scheduler: direct}, nil
}

func restClient(config *rest.Config) (rest.Interface, error) {
	// Errors arrive as Status objects; everything else is read here.
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	if config.UserAgent == "" {
		config.UserAgent = "skiff"
	}
	return rest.UnversionedRESTClientFor(config)
}

// Why asks why a pod is where it is, or nowhere.
func (c *Client) Why(ctx context.Context, namespace, name string) (*decision.Explanation, error) {
	var e decision.Explanation
	path := scheduler.Root + scheduler.GroupVersion.Version + "/namespaces/" + namespace + "/pods/" + name + "/why"
	if err := decode(c.scheduler.Get().AbsPath(path).Do(ctx), &e); err != nil {
		return nil, fmt.Errorf("why pod %s/%s: %w", namespace, name, err)
	}
	return &e, nil
}

// WhatIf asks where the pods of workloads would go. Pods of one namespace are asked about there; those of several need the right
// to ask about all.
func (c *Client) WhatIf(ctx context.Context, workloads []Workload, verdicts bool) ([]decision.Explanation, error) {
	request := scheduler.WhatIf{
		TypeMeta: metav1.TypeMeta{Kind: "WhatIf", APIVersion: scheduler.GroupVersion.String()}, Verdicts: verdicts,
	}
	path := scheduler.Root + scheduler.GroupVersion.Version
	namespaces := map[string]bool{}
	for i := range workloads {
		pod, err := c.dryRunCreate(ctx, workloads[i].Pod)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", workloads[i].Origin, err)
		}
		namespaces[pod.Namespace] = true
		hypothetical := workloads[i].HypotheticalPod
		hypothetical.Pod = *pod
		request.Pods = append(request.Pods, hypothetical)
	}
	if len(namespaces) == 1 {
		path += "/namespaces/" + request.Pods[0].Pod.Namespace
	}
	body, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	var response scheduler.WhatIf
	if err := decode(c.scheduler.Post().AbsPath(path+"/whatifs").Body(body).Do(ctx), &response); err != nil {
		return nil, fmt.Errorf("what if: %w", err)
	}
	return response.Results, nil
}

// admitted is what the API server would make of a new pod.
func (c *Client) dryRunCreate(ctx context.Context, pod corev1.Pod) (*corev1.Pod, error) {
	// A pod of that name may exist; one by a name the server makes up does not.
	name := pod.Name
	pod.TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
	pod.GenerateName, pod.Name, pod.ResourceVersion, pod.UID = strings.TrimSuffix(name, "-")+"-", "", "", ""
	body, err := json.Marshal(pod)
	if err != nil {
		return nil, err
	}
	var admitted corev1.Pod
	request := c.server.Post().AbsPath("/api/v1/namespaces/"+pod.Namespace+"/pods").Param("dryRun", metav1.DryRunAll)
	if err := decode(request.Body(body).Do(ctx), &admitted); err != nil {
		return nil, fmt.Errorf("the API server would not take the pod: %w", err)
	}
	admitted.Name, admitted.GenerateName = name, ""
	return &admitted, nil
}

func decode(result rest.Result, object any) error {
	data, err := result.Raw()
	if err != nil {
		// Raw does not read the Status that an error comes with.
		if read := result.Error(); read != nil {
			return read
		}
		return err
	}
	return json.Unmarshal(data, object)
}
