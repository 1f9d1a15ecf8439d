package identity

import (
	"context"
	"crypto/x509"
	"fmt"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"

	"skiff/internal/client"
	"skiff/internal/controller"
)

// approvalRetryDelay is the delay before a request of an unauthorized user is checked again: roles may change.
const approvalRetryDelay = 30 * time.Second

// CertificateApproving approves kubelet client certificates for authorized users: a node for itself, or a user that may request
// them for any node, such as a bootstrap token. With bindNames, the name of a node belongs to the host that requested it first (nodeNames).
func CertificateApproving(bindNames bool) controller.Definition {
	return controller.Definition{
		Name: "certificatesigningrequest-approving-controller", Aliases: []string{"csrapproving"}, Queue: "certificate-csrapproving", Workers: 5,
		New: func(s *controller.Setup) (controller.Syncer, error) {
			a := &approver{
				requests:   client.InformerFor[*certificatesv1.CertificateSigningRequest](s.Informers),
				write:      client.For[*certificatesv1.CertificateSigningRequest](s.Client),
				retryLater: func(key controller.Key) { s.EnqueueAfter(key, approvalRetryDelay) },
				authorize: func(ctx context.Context, review *authorizationv1.SubjectAccessReview) (bool, error) {
					answer, err := client.For[*authorizationv1.SubjectAccessReview](s.Client).Create(ctx, review, client.WriteOptions{})
					if err != nil {
						return false, err
					}
					return answer.Status.Allowed, nil
				},
			}
			if bindNames {
				a.names = &nodeNames{records: client.For[*corev1.ConfigMap](s.Client), nodes: client.For[*corev1.Node](s.Client)}
			}
			return a, controller.WatchPrimary[*certificatesv1.CertificateSigningRequest](s)
		},
	}
}

type approver struct {
	requests   client.Informer[*certificatesv1.CertificateSigningRequest]
	write      client.Resource[*certificatesv1.CertificateSigningRequest]
	authorize  func(ctx context.Context, review *authorizationv1.SubjectAccessReview) (bool, error)
	retryLater func(controller.Key)
	// names are the names of nodes and their owners; nil: a name can be requested by any host.
	names *nodeNames
}

// Sync approves one request if its user is authorized.
func (a *approver) Sync(ctx context.Context, key controller.Key) error {
	request, ok := a.requests.Get("", key.Name)
	if !ok || len(request.Status.Certificate) > 0 || hasCondition(request, certificatesv1.CertificateApproved) || hasCondition(request, certificatesv1.CertificateDenied) {
		return nil
	}
	parsed, err := parseRequest(request)
	if err != nil {
		return err
	}
	recognizers := recognizersFor(request, parsed)
	for _, recognizer := range recognizers {
		allowed, err := a.authorize(ctx, review(request, recognizer.subresource))
		if err != nil {
			return fmt.Errorf("check access of %s: %w", request.Spec.Username, err)
		}
		if !allowed {
			continue
		}
		return a.decide(ctx, request, parsed, recognizer)
	}
	if len(recognizers) > 0 {
		a.retryLater(key)
	}
	return nil
}

// decide approves a request whose user is authorized, or denies it because the name of its node belongs to another host.
func (a *approver) decide(ctx context.Context, request *certificatesv1.CertificateSigningRequest, parsed *x509.CertificateRequest, r recognizer) error {
	condition := certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "AutoApproved", Message: r.message,
	}
	if a.names != nil {
		objection, err := a.names.bind(ctx, request, parsed)
		if err != nil {
			return err
		}
		if objection != "" {
			condition.Type, condition.Reason, condition.Message = certificatesv1.CertificateDenied, "NodeNameTaken", objection
		}
	}
	next := request.DeepCopy()
	next.Status.Conditions = append(next.Status.Conditions, condition)
	_, err := a.write.Update(ctx, next, client.WriteOptions{Subresource: "approval"})
	return err
}

// recognizer is a permission that allows automatic approval, and the message of the approval.
type recognizer struct{ subresource, message string }

func recognizersFor(request *certificatesv1.CertificateSigningRequest, parsed *x509.CertificateRequest) []recognizer {
	if request.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName || kubeletClient(parsed, request.Spec.Usages) != nil {
		return nil
	}
	any := recognizer{"nodeclient", "Auto approving kubelet client certificate after SubjectAccessReview."}
	if request.Spec.Username != parsed.Subject.CommonName {
		return []recognizer{any}
	}
	return []recognizer{{"selfnodeclient", "Auto approving self kubelet client certificate after SubjectAccessReview."}, any}
}

func review(request *certificatesv1.CertificateSigningRequest, subresource string) *authorizationv1.SubjectAccessReview {
	extra := map[string]authorizationv1.ExtraValue{}
	for key, values := range request.Spec.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	return &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: request.Spec.Username, UID: request.Spec.UID, Groups: request.Spec.Groups, Extra: extra,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Group: certificatesv1.GroupName, Version: "*", Resource: "certificatesigningrequests", Subresource: subresource, Verb: "create",
		},
	}}
}
