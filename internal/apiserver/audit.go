package apiserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	apiyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"skiff/internal/apiserver/authn"
	"skiff/internal/kind"
)

// beginAudit records that a request has arrived, once it is known who sent it.
func (s *Server) beginAudit(req *request, id *authn.Identity) error {
	if s.config.Audit == nil {
		return nil
	}
	req.newEvent(s)
	for key, value := range id.Annotations {
		req.event.Annotate(key, value)
	}
	if !req.event.Received(isLongRunning(&req.info)) {
		return apierrors.NewInternalError(errors.New("failed to store audit event"))
	}
	if req.event.WantsResponse() && !isLongRunning(&req.info) {
		// What is recorded is what is sent, so it must not be compressed.
		req.Header.Del("Accept-Encoding")
		req.w.copied = []byte{}
	}
	return nil
}

// auditRefused notes that the answer to a request from nobody knows whom is all there is to record.
func (s *Server) auditRefused(req *request) {
	if s.config.Audit != nil {
		req.newEvent(s)
		req.event.Unauthenticated()
	}
}

func (r *request) newEvent(s *Server) {
	a := r.info.attributes(nil)
	a.User = r.user
	r.event = s.config.Audit.Begin(r.Request, r.id, r.start, &a)
	r.w.event = r.event
}

// auditDecision notes why the request may go on or not.
func (r *request) auditDecision(decision, reason string) {
	r.event.Annotate("authorization.k8s.io/decision", decision)
	r.event.Annotate("authorization.k8s.io/reason", reason)
}

// auditObject records the object a client sent, before anything is done with it but filling in defaults. It is in the
// stored version unless kind says otherwise.
func (s *Server) auditObject(req *request, obj kind.Object, gvk schema.GroupVersionKind) {
	req.event.SetObject(obj)
	if !req.event.WantsRequest() {
		return
	}
	var shown runtime.Object = obj
	if gvk == req.res.gvk {
		versioned, err := req.res.fromStored(obj)
		if err != nil {
			s.log.Warn("cannot record what was sent", "path", req.URL.Path, "error", err)
			return
		}
		shown = versioned
	}
	s.auditBody(req, shown, gvk)
}

// auditDeletion records the options of a deletion. Upstream decodes them into a type of its own before, and events show it.
func (s *Server) auditDeletion(req *request, options *metav1.DeleteOptions) {
	shown := *options
	shown.TypeMeta = metav1.TypeMeta{Kind: "DeleteOptions", APIVersion: "meta.k8s.io/__internal"}
	s.auditBody(req, &shown, shown.GroupVersionKind())
}

func (s *Server) auditBody(req *request, obj runtime.Object, gvk schema.GroupVersionKind) {
	body, err := appendObject(nil, obj, gvk, formatJSON)
	if err != nil {
		s.log.Warn("cannot record what was sent", "path", req.URL.Path, "error", err)
		return
	}
	req.event.SetRequest(body)
}

// auditPatch records a patch, whose syntax has been checked.
func (p *patching) auditPatch() {
	if !p.req.event.WantsRequest() {
		return
	}
	body := p.body
	if p.patchType == types.ApplyYAMLPatchType {
		var err error
		if body, err = apiyaml.ToJSON(body); err != nil {
			return
		}
	}
	p.req.event.SetRequest(body)
}

// auditStatus notes a Status that is about to be sent, also where a stream was asked for, of which nothing else is recorded.
func (s *Server) auditStatus(req *request, status *metav1.Status) {
	req.event.SetStatus(status)
	if !req.event.WantsResponse() {
		return
	}
	if body, err := appendObject(nil, status, metav1.Unversioned.WithKind("Status"), formatJSON); err == nil {
		req.event.SetResponse(body)
	}
}

// finishAudit records the answer.
func (s *Server) finishAudit(req *request) {
	if req.event == nil {
		return
	}
	if len(req.w.copied) > 0 {
		// What another server answered through us is its own to record; a Status may be ours.
		ours := req.res != nil || !req.info.isResource()
		body, err := s.answerJSON(req.w.Header(), req.w.copied)
		if kindOf := answerKind(body); err == nil && (kindOf == "Status" || kindOf != "" && ours) {
			req.event.SetResponse(body)
		} else if err != nil {
			s.log.Warn("cannot record what was answered", "path", req.URL.Path, "error", err)
		}
	}
	if res := req.res; res != nil && res.deprecation != "" {
		req.event.Annotate("k8s.io/deprecated", "true")
		if release := removalOf(res.newObject()); release != "" {
			req.event.Annotate("k8s.io/removed-release", release)
		}
	}
	req.event.Complete()
}

// answerJSON is an answer as JSON, whatever the client got.
func (s *Server) answerJSON(header http.Header, body []byte) ([]byte, error) {
	mediaType, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	if err != nil {
		return nil, nil // no object
	}
	switch mediaType {
	case mediaJSON:
		return body, nil
	case mediaYAML:
		return yaml.YAMLToJSON(body)
	case mediaProtobuf:
		e, err := openEnvelope(body)
		if err != nil {
			return nil, err
		}
		gvk := schema.FromAPIVersionAndKind(e.apiVersion, e.kind)
		obj, err := s.newAnswer(gvk)
		if err != nil {
			return nil, err
		}
		if err := obj.Unmarshal(e.raw); err != nil {
			return nil, err
		}
		return appendObject(nil, obj, gvk, formatJSON)
	}
	return nil, nil
}

// protoAnswer is an object that can be read from protobuf.
type protoAnswer interface {
	runtime.Object
	Unmarshal(data []byte) error
}

func (s *Server) newAnswer(gvk schema.GroupVersionKind) (protoAnswer, error) {
	if gvk == metav1.Unversioned.WithKind("Status") {
		return &metav1.Status{}, nil
	}
	if gvk.Group == metav1.GroupName {
		switch gvk.Kind {
		case "PartialObjectMetadata":
			return &metav1.PartialObjectMetadata{}, nil
		case "PartialObjectMetadataList":
			return &metav1.PartialObjectMetadataList{}, nil
		}
	}
	obj, err := s.config.Scheme.New(gvk)
	if err != nil {
		return nil, err
	}
	answer, ok := obj.(protoAnswer)
	if !ok {
		return nil, fmt.Errorf("%s has no protobuf form", gvk)
	}
	return answer, nil
}

// answerKind is the kind of an object, empty for documents like /version that are JSON too.
func answerKind(body []byte) string {
	var named metav1.TypeMeta
	if len(body) == 0 || json.Unmarshal(body, &named) != nil {
		return ""
	}
	return named.Kind
}
