"""What the page says, in English and Chinese; the browser's language chooses."""

from __future__ import annotations

import re
from typing import Any

import gradio as gr

ENGLISH = {
    "drafted": "The same answer, sooner. A drafter rides ahead; the model keeps only what it would have written "
    "itself.",
    "exact": "Who drafts changes the speed, never the text. Nothing leaves this machine.",
    "inexact": "On this device who drafts may change the text. Nothing leaves this machine.",
    "plain": "Plain decoding: on this device nobody rides ahead.",
    "genai": "OpenVINO GenAI decodes on {device}, where the same seed may give another text. Nothing leaves this "
    "machine.",
    "empty": "Ask for a change to a Python function, or start with one of these.",
    "ask": "Ask for a change",
    "send": "Send",
    "stop": "Stop",
    "colour": "Colour by origin",
    "mode": "Who drafts",
    "prompt": "Prompt",
    "chats": "Conversations",
    "new": "New",
    "search": "Search titles and texts",
    "title": "Title of this conversation",
    "rename": "Rename",
    "delete": "Delete",
    "delete_sure": "Delete for good",
    "keep": "Keep it",
    "export_json": "Export JSON",
    "export_markdown": "Export Markdown",
    "import": "Import",
    "imported": "Imported “{title}”.",
    "nothing_open": "No conversation is open: choose one from the list first.",
    "no_title": "A title needs at least one letter.",
    "not_answered": "Not answered",
    "not_done": "Not done",
    "one_at_a_time": "One at a time",
    "still_writing": "An answer is still being written: stop it first.",
    "thinking": "Thinking",
    "edit": "Edit",
    "edit_hint": "Change this prompt and ask again; the old answer is kept as a branch",
    "copy": "Copy",
    "copy_prompt_hint": "Copy this prompt",
    "copy_answer_hint": "Copy this answer",
    "back": "‹",
    "back_hint": "The branch before",
    "on": "›",
    "on_hint": "The next branch",
    "tokens": "{count} tokens",
    "token": "{count} token",
    "speed": "{rate} tokens/s",
    "passes": "{count} passes",
    "pass": "{count} pass",
    "accepted": "{accepted} of {drafted} drafted accepted",
    "undrafted": "nothing drafted",
    "seed": "seed {seed}",
    "cut": "cut at the length limit",
    "stopped": "stopped",
    "mode_auto": "Automatic",
    "mode_off": "Plain",
    "mode_lookup": "Prompt lookup",
    "mode_suffix": "Text index",
    "mode_draft": "Draft model",
    "mode_chained": "Chained",
    "tokens_from": "Tokens from",
    "from_target": "the model",
    "from_prompt_lookup": "prompt lookup",
    "from_suffix": "text index",
    "from_reference": "your files",
    "from_draft_model": "draft model",
    "from_target_hint": "Written by the model itself",
    "from_prompt_lookup_hint": "Found in the prompt or the answer so far, and confirmed by the model",
    "from_suffix_hint": "Copied from the text so far, edits included, and confirmed by the model",
    "from_reference_hint": "Found in the reference folder, and confirmed by the model",
    "from_draft_model_hint": "Proposed by the draft model, and confirmed by the model",
    "sampling": "Sampling",
    "temperature": "Temperature",
    "top_k": "Top-k (0: no limit)",
    "top_p": "Top-p",
    "min_p": "Min-p",
    "repetition_penalty": "Repetition penalty",
    "seed_label": "Seed",
    "max_new_tokens": "Answer tokens",
    "draft_tokens": "Draft tokens (0: as many as pay)",
    "editing": "You are changing an earlier prompt. Sending it begins a branch.",
    "cancel_edit": "Leave it as it was",
    "attach": "Attach text files",
    "detach": "Remove the files",
    "attached": "{name} ({size} characters)",
    "attach_limit": "Up to {limit} KB of text together; drafts copy from them.",
    "system": "System prompt",
    "system_hint": "What the model is told before every conversation",
    "preset": "Preset",
    "preset_hint": "Choose one, or type a name to keep these settings under",
    "keep_preset": "Keep as preset",
    "drop_preset": "Delete preset",
    "no_preset_name": "Type a name for the preset first.",
    "context": "Context: {used} of {all} tokens used",
    "context_unknown": "Context: {all} tokens",
    "state_warming": "warming up",
    "state_failed": "failed to start: {reason}",
    "state_device": "ready on {device}",
    "state_ready": "ready",
    "state_inexact": "ready, but not exact on this device",
}
CHINESE = {
    "drafted": "答案不变，速度更快。草稿器先行一步，模型只保留它自己也会写出的内容。",
    "exact": "由谁起草只影响速度，不影响文字。数据不会离开本机。",
    "inexact": "在此设备上，由谁起草可能影响文字。数据不会离开本机。",
    "plain": "普通解码：在此设备上没有草稿。",
    "genai": "由 OpenVINO GenAI 在 {device} 上解码，相同的种子可能得到不同的文字。数据不会离开本机。",
    "empty": "请提出对一个 Python 函数的修改，或从下面的例子开始。",
    "ask": "请输入要做的修改",
    "send": "发送",
    "stop": "停止",
    "colour": "按来源着色",
    "mode": "由谁起草",
    "prompt": "提示",
    "chats": "对话",
    "new": "新对话",
    "search": "搜索标题和内容",
    "title": "本对话的标题",
    "rename": "重命名",
    "delete": "删除",
    "delete_sure": "确认删除",
    "keep": "保留",
    "export_json": "导出 JSON",
    "export_markdown": "导出 Markdown",
    "import": "导入",
    "imported": "已导入“{title}”。",
    "nothing_open": "没有打开的对话：请先从列表中选择一个。",
    "no_title": "标题至少需要一个字。",
    "not_answered": "未能回答",
    "not_done": "未能完成",
    "one_at_a_time": "一次一个",
    "still_writing": "答案仍在书写：请先停止。",
    "thinking": "思考中",
    "edit": "编辑",
    "edit_hint": "修改此提示并重新提问；旧答案保留为分支",
    "copy": "复制",
    "copy_prompt_hint": "复制此提示",
    "copy_answer_hint": "复制此答案",
    "back": "‹",
    "back_hint": "上一个分支",
    "on": "›",
    "on_hint": "下一个分支",
    "tokens": "{count} 个词元",
    "token": "{count} 个词元",
    "speed": "{rate} 词元/秒",
    "passes": "{count} 次推理",
    "pass": "{count} 次推理",
    "accepted": "草稿 {drafted} 个，接受 {accepted} 个",
    "undrafted": "没有草稿",
    "seed": "种子 {seed}",
    "cut": "达到长度上限而截断",
    "stopped": "已停止",
    "mode_auto": "自动",
    "mode_off": "普通",
    "mode_lookup": "提示查找",
    "mode_suffix": "文本索引",
    "mode_draft": "草稿模型",
    "mode_chained": "串联",
    "tokens_from": "词元来自",
    "from_target": "模型本身",
    "from_prompt_lookup": "提示查找",
    "from_suffix": "文本索引",
    "from_reference": "您的文件",
    "from_draft_model": "草稿模型",
    "from_target_hint": "由模型自己写出",
    "from_prompt_lookup_hint": "在提示或已写的答案中找到，并经模型确认",
    "from_suffix_hint": "从已有文字复制（包括修改），并经模型确认",
    "from_reference_hint": "在参考文件夹中找到，并经模型确认",
    "from_draft_model_hint": "由草稿模型提出，并经模型确认",
    "sampling": "采样",
    "temperature": "温度",
    "top_k": "Top-k（0：不限）",
    "top_p": "Top-p",
    "min_p": "Min-p",
    "repetition_penalty": "重复惩罚",
    "seed_label": "种子",
    "max_new_tokens": "答案词元数",
    "draft_tokens": "草稿词元数（0：划算即可）",
    "editing": "您正在修改之前的提示。发送后会另起一个分支。",
    "cancel_edit": "保持原样",
    "attach": "附加文本文件",
    "detach": "移除文件",
    "attached": "{name}（{size} 个字符）",
    "attach_limit": "文本合计不超过 {limit} KB；草稿会从中复制。",
    "system": "系统提示",
    "system_hint": "每次对话之前告诉模型的内容",
    "preset": "预设",
    "preset_hint": "选择一个，或输入名称以保存当前设置",
    "keep_preset": "保存为预设",
    "drop_preset": "删除预设",
    "no_preset_name": "请先输入预设的名称。",
    "context": "上下文：已用 {used} / {all} 个词元",
    "context_unknown": "上下文：{all} 个词元",
    "state_warming": "预热中",
    "state_failed": "启动失败：{reason}",
    "state_device": "已在 {device} 上就绪",
    "state_ready": "就绪",
    "state_inexact": "就绪，但在此设备上不精确",
}
CATALOGUES = {"en": ENGLISH, "zh": CHINESE}


class Words:
    """The sentences of one language: `words("seed", seed=7)`."""

    def __init__(self, language: str) -> None:
        self._catalogue = CATALOGUES[language]

    def __call__(self, key: str, **values: object) -> str:
        return self._catalogue[key].format(**values)

    def count(self, number: int, one: str, many: str) -> str:
        return self(one if number == 1 else many, count=f"{number:,}")


IN_ENGLISH = Words("en")


def words_of(request: gr.Request) -> Words:
    """The language that a browser asks for, as far as it is one of ours."""
    return Words(language_of(request.headers.get("accept-language", "")))


def language_of(accepted: str) -> str:
    """The first of ours in an Accept-Language header, where browsers name the preferred ones first."""
    for tag in re.findall(r"[A-Za-z]+", re.sub(r"-\w+|;q=[\d.]+", "", accepted)):
        if tag.lower() in CATALOGUES:
            return str(tag.lower())
    return "en"


# The labels of components, which the browser chooses itself.
TRANSLATIONS = gr.I18n(**{"en": ENGLISH, "zh-CN": CHINESE, "zh-TW": CHINESE, "zh": CHINESE})


def translate(key: str) -> Any:
    """A label that the browser fills in, which Gradio takes wherever it takes a string."""
    return TRANSLATIONS(key)
